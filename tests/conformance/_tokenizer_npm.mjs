// The npm binding of Hugging Face's engine, for tokenizer.py and bench/text_oracle.py.
//
//     node _tokenizer_npm.mjs PACKAGE TOKENIZER_JSON FILE [speed]
//
// FILE holds records of a 32-bit length and UTF-8.  Each is answered by a count, that many ids, a
// length and the text that the ids decode to, little-endian.  speed: instead, for every line of input,
// "encode decode" in MB/s of CPU time, each of the second of two passes over the texts.
import { readFileSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const [place, file, input, speed] = process.argv.slice(2);
const { Tokenizer } = createRequire(import.meta.url)(place);
const engine = Tokenizer.fromFile(file);
const data = readFileSync(input);
const texts = [];
for (let at = 0; at < data.length; ) {
  const n = data.readUInt32LE(at);
  texts.push(data.toString("utf8", at + 4, at + 4 + n));
  at += 4 + n;
}

const encode = async (text) => (await engine.encode(text, null, { addSpecialTokens: false })).getIds();
const decode = (ids) => engine.decode(ids, false);

function put(buffer) {
  for (let at = 0; at < buffer.length; ) at += writeSync(1, buffer, at);
}

function seconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6;
}

async function measure(work, items, bytes) {
  let spent;
  for (let pass = 0; pass < 2; pass++) {
    const start = seconds();
    for (const item of items) await work(item);
    spent = seconds() - start;
  }
  return (bytes / 1e6 / spent).toFixed(3);
}

if (speed) {
  const bytes = texts.reduce((n, t) => n + Buffer.byteLength(t), 0);
  const ids = [];
  for (const text of texts) ids.push(await encode(text));
  for await (const _ of createInterface({ input: process.stdin }))
    console.log(await measure(encode, texts, bytes), await measure(decode, ids, bytes));
} else {
  for (const text of texts) {
    const ids = await encode(text);
    const back = Buffer.from(await decode(ids), "utf8");
    const head = Buffer.alloc(4 * (ids.length + 2));
    head.writeUInt32LE(ids.length, 0);
    ids.forEach((id, i) => head.writeUInt32LE(id, 4 * (i + 1)));
    head.writeUInt32LE(back.length, 4 * (ids.length + 1));
    put(Buffer.concat([head, back]));
  }
}
