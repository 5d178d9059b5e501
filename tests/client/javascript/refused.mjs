// What a client sees of a node at argv[2] that opens no socket, or greets nobody, or refuses; argv[3]: what it does;
// argv[4]: a module of `WebSocket`.
import { createRequire } from "node:module";
import { Session, connect } from "../../../web/client.js";

const [, , url, what, socket] = process.argv;
const { WebSocket } = socket ? createRequire(import.meta.url)(socket) : globalThis;

if (what === "abort") {
  const reason = new Error("enough");
  const giveUp = new AbortController();
  setTimeout(() => giveUp.abort(reason), 300);
  const error = await connect(url, { signal: giveUp.signal, WebSocket }).catch((error) => error);
  console.log(JSON.stringify(error === reason));
} else {
  const address = new URL("v1/tts/stream", url);
  address.protocol = "ws";
  const session = await Session.open(address, null, WebSocket);
  const closed = [];
  session.encoding = { output: {}, decoder: () => ({ push() {}, finish: () => closed.push("finish"), close: () => closed.push("close") }) };
  await session.greeted();
  const context = session.open({ voice: "nobody" });
  context.append("Hello.");
  await new Promise((resolve) => (session.onmessage = (message) => message.type === "error" && resolve()));
  const left = session.contexts.size;
  const { done, cancelled } = context;
  context.append("More.");
  session.close();
  console.log(JSON.stringify({ done, cancelled, left, closed }));
}
