// Runs a WebAssembly program that has files, arguments and a console: node .ci/wasi.mjs PROGRAM ARGUMENT...
import { readFileSync } from "node:fs";
import { WASI } from "node:wasi";

const args = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args, env: process.env, preopens: { "/": "/" } });
// Rust's library names functions for threads that the C library has not. Nothing calls them.
const env = new Proxy({}, { get: (_, name) => () => { throw new Error(`${name} is missing`); } });
const program = new WebAssembly.Module(readFileSync(args[0]));
process.exitCode = wasi.start(new WebAssembly.Instance(program, { ...wasi.getImportObject(), env }));
