// Runs every processor of the program in a worker of its own, over one shared memory.
import { Worker, isMainThread, workerData } from 'node:worker_threads';
import { readFileSync, writeSync } from 'node:fs';

const PROCESSORS = 6;
const PAGES = 1536 * 16;

if (isMainThread) {
    const memory = new WebAssembly.Memory({ initial: PAGES, maximum: PAGES, shared: true });
    const program = new WebAssembly.Module(readFileSync(process.argv[2]));
    for (let processor = 0; processor < PROCESSORS; processor++) {
        const worker = new Worker(new URL(import.meta.url), { workerData: { memory, program, processor } });
        worker.on('error', (error) => { console.error(error); process.exit(1); });
        // Who ends, ends all.
        worker.on('exit', (status) => process.exit(status));
    }
} else {
    const { memory, program, processor } = workerData;
    const say = (text, length) => writeSync(1, new Uint8Array(memory.buffer).slice(text, text + length));
    const end = (status) => process.exit(status);
    // A worker that waits lets another run.
    const none = new Int32Array(new SharedArrayBuffer(4));
    const rest = () => { Atomics.wait(none, 0, 0, 0.02); };
    const { exports } = new WebAssembly.Instance(program, { env: { memory, say, end, rest } });
    exports.__stack_pointer.value = exports.stack_top(processor);
    exports.enter(processor);
    // All goes well only where `end` says so.
    end(1);
}
