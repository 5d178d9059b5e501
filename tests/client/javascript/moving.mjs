// A connection that moves, to argv[2]. argv[3]: the process of its node, killed in the middle of a text; "asked": others ask
// it to move; "cut": it is cut at many places. Prints what a listener hears.
import { connect } from "../../../web/client.js";

const TEXT = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen.";
const PLACES = Array.from({ length: 8 }, (_, i) => 20_000 + 2_500 * i);
const [, , url, what] = process.argv;

/** Read an utterance as one who plays it from the first sound on; `onsamples` sees how many have come. */
async function heard(speech, onsamples = () => {}) {
  const found = { samples: 0, waitedMs: 0, gaps: 0, words: {}, starts: {}, flushed: [], cut: null, done: null };
  let began = null;
  for await (const event of speech) {
    if (event.type === "words" && event.kind === "aligned") {
      for (const { word, char_start, start_ms } of event.words) {
        found.words[char_start] = word;
        found.starts[char_start] = start_ms;
      }
    } else if (event.type === "audio") {
      began ??= performance.now();
      found.waitedMs += Math.max(0, performance.now() - began - found.samples / 24 - found.waitedMs);
      if (event.firstSample !== found.samples) found.gaps++;
      found.samples += event.pcm.length;
      onsamples(found.samples);
    } else if (event.type === "context.flushed") found.flushed.push(event.flush_id);
    else if (event.type === "context.cancelled") found.cut = event;
    else if (event.type === "context.done") found.done = event;
  }
  return found;
}

/** When the last word of a text behind a pause of the writer is said, ms; the connection is cut at this sample. */
async function lastWordOf(place) {
  let cut = () => {};
  class Cuttable extends WebSocket {
    constructor(...all) {
      super(...all);
      cut = () => {
        const { onclose } = this;
        this.onmessage = this.onclose = null;
        this.close();
        onclose({ code: 1006, reason: "" });
        cut = () => {};
      };
    }
  }
  const node = await connect(url, { moves: true, WebSocket: Cuttable });
  const speech = node.open({ voice: "tone-440", lead_ms: null, seed: 1 });
  speech.write("Well, ");
  setTimeout(() => (speech.write(`${TEXT} `.repeat(5)), speech.end()), 1_500);
  let left = place;
  const { starts } = await heard(speech, (come) => come > left && ((left = Infinity), cut()));
  node.close();
  return Object.values(starts).at(-1);
}

const node = await connect(url, { moves: true });
const say = (options) => {
  const speech = node.open({ voice: "tone-440", ...options });
  speech.write(TEXT);
  speech.flush("f1");
  speech.end();
  return speech;
};

if (what === "asked") {
  const first = node.greeting.session_id;
  const old = node.open();
  old.write("One two three");
  while (node.greeting.session_id === first) await new Promise((resolve) => setTimeout(resolve, 10));
  const next = node.open();
  next.write("four");
  next.end();
  const later = await heard(next);
  old.end();
  console.log(JSON.stringify([(await heard(old)).done.reason, later.done.reason]));
} else if (what === "cut") {
  console.log(JSON.stringify(await Promise.all([Infinity, ...PLACES].map(lastWordOf))));
} else {
  const whole = await heard(say({ lead_ms: null }));
  const other = say({ lead_ms: 400 });
  const otherHeard = heard(other);
  let left = Number(what);
  const resumed = await heard(say({ lead_ms: 400 }), (samples) => {
    if (samples > 48_000 && left) left = process.kill(left, "SIGKILL") && 0;
    if (samples > 84_000) other.cancel(2_600);
  });
  const { cut, done } = await otherHeard;
  console.log(JSON.stringify({ whole, resumed, cut: { ...cut, ...done } }));
}
node.close();
