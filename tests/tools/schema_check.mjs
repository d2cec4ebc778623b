// SPDX-License-Identifier: GPL-2.0 OR Linux-OpenIB
// schema_check.mjs MODULES KIND FILE: what the publishers' own validators have against a file, a line
// each. KIND is workflow or action (GitHub), or a kind of Kubernetes such as apps/v1/Deployment, whose
// file is JSON. MODULES is a node_modules folder with the packages that published_schemas.py names.
import { readFileSync } from "node:fs";
import { register } from "node:module";
import { pathToFileURL } from "node:url";

const [modules, kind, path] = process.argv.slice(2);
const content = readFileSync(path, "utf8");
const silent = { error() {}, info() {}, verbose() {} };

// GitHub's parser imports its schema without the attribute that Node wants of JSON.
const hook = `export async function load(url, context, next) {
  const attributes = url.endsWith(".json") ? { importAttributes: { type: "json" } } : {};
  return next(url, { ...context, ...attributes });
}`;
register(`data:text/javascript,${encodeURIComponent(hook)}`);

const load = (file) => import(pathToFileURL(`${modules}/${file}`).href);

async function ofGitHub([file, parse]) {
  const parser = await load(`@actions/workflow-parser/dist/${file}`);
  const result = parser[parse]({ name: path, content }, silent);
  return result.context.errors.getErrors().map((error) => error.message);
}

async function ofKubernetes() {
  const { [kind.split("/").pop()]: Model } = await load(`kubernetes-models/${kind}.js`);
  try {
    new Model(JSON.parse(content)).validate();
    return [];
  } catch (error) {
    return [error.message];
  }
}

const parsers = {
  workflow: ["workflows/workflow-parser.js", "parseWorkflow"],
  action: ["actions/action-parser.js", "parseAction"],
};
const errors = kind in parsers ? await ofGitHub(parsers[kind]) : await ofKubernetes();
errors.forEach((error) => console.log(error));
process.exitCode = errors.length === 0 ? 0 : 1;
