# SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
"""libibverbs loaded and unloaded by a program that is not linked with it."""

import sys

import pytest

LOADS = """
import _ctypes, ctypes, sys

def verbs():
    library = ctypes.CDLL("libibverbs.so.1")
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    for call in ("ibv_open_device", "ibv_alloc_pd", "ibv_create_cq"):
        getattr(library, call).restype = ctypes.c_void_p
    return library

def loaded():
    return "libibverbs.so" in open("/proc/self/maps").read()

for turn in range(3):
    library = verbs()
    count = ctypes.c_int()
    devices = library.ibv_get_device_list(ctypes.byref(count))
    assert count.value > 0
    if sys.argv[1] != "list":
        context = library.ibv_open_device(ctypes.c_void_p(devices[count.value - 1]))
        assert context
        domain = library.ibv_alloc_pd(ctypes.c_void_p(context))
        queue = library.ibv_create_cq(ctypes.c_void_p(context), 16, None, None, 0)
        assert domain and queue
    if sys.argv[1] == "closed":
        assert library.ibv_destroy_cq(ctypes.c_void_p(queue)) == 0
        assert library.ibv_dealloc_pd(ctypes.c_void_p(domain)) == 0
        assert library.ibv_close_device(ctypes.c_void_p(context)) == 0
    library.ibv_free_device_list(devices)
    _ctypes.dlclose(library._handle)
    del library
print("done")
"""


@pytest.mark.parametrize("left", ["list", "closed", "open"])
def test_unloading(start, left):
    """After a look at the list, after an orderly end, and with a device left open."""
    process = start([sys.executable, "-c", LOADS, left])
    assert process.succeed().strip() == "done", process
