// What a client makes of the server at argv[2], which breaks as the text of an utterance says; argv[3]: a module of
// `WebSocket`; the others: these texts.
import { createRequire } from "node:module";
import { connect } from "../../../web/client.js";

const [, , url, socket, ...texts] = process.argv;
const { WebSocket } = socket ? createRequire(import.meta.url)(socket) : globalThis;

async function outcome(text) {
  const node = await connect(url, { WebSocket });
  const began = performance.now();
  const closed = new Promise((resolve) => (node.onclose = ({ code }) => resolve(code)));
  const speech = node.open();
  speech.write(text);
  speech.end();
  try {
    for await (const _ of speech);
    node.close();
    return "spoken";
  } catch ({ code }) {
    return [code, await closed, performance.now() - began < 3_500];
  }
}

console.log(JSON.stringify(await Promise.all(texts.map(outcome))));
