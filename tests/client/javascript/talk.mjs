// A conversation with the node at argv[2], in Node; prints what happened. argv[3]: a key; argv[4]: a module of `WebSocket`.
import { createRequire } from "node:module";
import { ApiError, connect } from "../../../web/client.js";

const [, , url, apiKey, socket] = process.argv;
const options = { apiKey, ...(socket ? { WebSocket: createRequire(import.meta.url)(socket).WebSocket } : {}) };
const node = await connect(url, options);

async function said(speech) {
  const found = { samples: 0, words: [], kinds: [] };
  for await (const event of speech) {
    found.kinds.push(event.type);
    if (event.type === "audio") found.samples += event.pcm.length;
    if (event.type === "words") found.words.push(...event.words.map(({ word }) => word));
    if (event.type === "context.cancelled") found.heard = event.heard_text;
    if (event.type === "context.done") found.reason = event.reason;
  }
  return found;
}

const whole = node.open();
for (const token of ["Hello", " there", ", 🎉 you."]) whole.write(token);
whole.end();

const cut = node.open({ voice: "en-gb" });
cut.write("One two three four five six seven eight nine ten eleven twelve. ");
setTimeout(() => cut.cancel(900), 400);

const refused = node.open({ voice: "nobody" });
refused.write("Hello.");
const error = await said(refused).catch((error) => error);

const results = { whole: await said(whole), cut: await said(cut), refused: [error instanceof ApiError, error.code] };

const left = node.open();
left.write("A sentence that nobody hears to its end.");
for await (const event of left) if (event.type === "audio") break;

const lost = node.open();
lost.write("Hello.");
node.close();
results.lost = await said(lost).catch(({ code }) => code);
results.unreachable = await connect("http://127.0.0.1:9", options).catch(({ code }) => code);
console.log(JSON.stringify(results));
