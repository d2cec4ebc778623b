// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// An MPI program for test_applications.py, for MPI libraries that Debian's mpi4py is not built for.
// Each rank passes messages of growing size around the ring and compares all bytes, and all ranks
// exchange with all.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

static void wrong(const char* what, int size) {
  fprintf(stderr, "rank %d: wrong bytes of %s, size %d\n", rank, what, size);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void compare(const char* what, const unsigned char* bytes, int size, int sender) {
  for (int i = 0; i < size; ++i)
    if (bytes[i] != (unsigned char)(sender * 31 + i * 7)) wrong(what, size);
}

static void fill(unsigned char* bytes, int size) {
  for (int i = 0; i < size; ++i) bytes[i] = (unsigned char)(rank * 31 + i * 7);
}

static void ring(unsigned char* out, unsigned char* in, int size) {
  const int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
  fill(out, size);
  for (int turn = 0; turn < 20; ++turn) {
    memset(in, 0, (size_t)size);
    MPI_Sendrecv(out, size, MPI_BYTE, next, turn, in, size, MPI_BYTE, previous, turn,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    compare("the ring", in, size, previous);
  }
}

static void all_to_all(unsigned char* out, unsigned char* in, int size) {
  for (int to = 0; to < ranks; ++to) fill(out + to * size, size);
  MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
  for (int from = 0; from < ranks; ++from) compare("all-to-all", in + from * size, size, from);
}

int main(int count, char** arguments) {
  enum { LARGEST = 1 << 20 };
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
  for (int size = 1; size <= LARGEST; size *= 4) ring(out, in, size);
  for (int size = 1; size * ranks <= LARGEST; size *= 16) all_to_all(out, in, size);
  MPI_Finalize();
  if (rank == 0) printf("%d ranks: ok\n", ranks);
  free(in);
  free(out);
  return 0;
}
