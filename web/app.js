/** The page's entry point: creates its components and connects them. */

import { Api, ApiError } from "./api.js";
import { audioContext, unlock } from "./audio.js";
import { Clip } from "./clip.js";
import { CloneDialog } from "./clone.js";
import { Composer } from "./composer.js";
import { Connection } from "./connection.js";
import { at, flashSilence } from "./dom.js";
import { History } from "./history.js";
import { MOST_CHARS, carriedBy, linkTo } from "./link.js";
import { Meters } from "./meters.js";
import { NodeView } from "./node_view.js";
import { Notices } from "./notices.js";
import { OPUS } from "./opus.js";
import { problemOf } from "./problems.js";
import { SAMPLES } from "./samples.js";
import { SNIPPETS } from "./snippets.js";
import { Speaker } from "./speaker.js";
import { recall, remember } from "./store.js";
import { Talk } from "./talk.js";
import { bindTheme } from "./theme.js";
import { Traffic } from "./traffic.js";
import { Views } from "./views.js";
import { VoiceField } from "./voice_field.js";
import { languageName } from "./voices.js";
import { Wave } from "./wave.js";

const NEAR_LIMIT = 0.8; // of the limit of a turn's text, from which on it is told
const GPU =
  "natural voices in ten languages, cloned and designed ones need a GPU: `make serve-qwen`, or `agent-tts serve --config gpu`.";
/** What is heard of an engine on the CPU. @type {Record<string, {title: string, body: string}>} */
const HEARD = {
  espeak: {
    title: "This is the robot voice, for trying out",
    body: "espeak-ng speaks here. `pip install '.[voice]'` in a checkout adds a natural voice in English; " + GPU,
  },
  hibari: {
    title: "English has a natural voice here",
    body: "Other languages are spoken by the robot voice, espeak-ng; " + GPU,
  },
};
/** @type {import("./notices.js").Notice} */
const CLONE = {
  title: "This node cannot clone voices",
  body:
    "Cloning needs a GPU and the model that clones: " +
    "`agent-tts serve --engine qwen3 --model Qwen/Qwen3-TTS-12Hz-1.7B-Base`.",
  actions: [{ label: "Close", run: () => {} }],
  calm: true,
};
const SLOW = OPUS
  ? "PCM needs 400 kbit/s, which do not come through. From the next text on, the sound comes as Opus, which needs 40."
  : "PCM needs 400 kbit/s, which do not come through. WebRTC needs 40.";
const USE_WEBRTC = {
  label: "Use WebRTC",
  run: () => /** @type {HTMLElement} */ (document.querySelector("[name=transport][value=webrtc]")).click(),
};
const RETRY_MS = 1_000; // at least; the node may ask for more
const MOST_RETRY_MS = 10_000;

const api = new Api();
const wave = new Wave(at("wave"));
const meters = new Meters(at("speak"));
const notices = new Notices(at("notices"));
const traffic = new Traffic(at("traffic-list"));
const speaker = new Speaker(at("said"), wave, meters);
const composer = new Composer(at("text"), speaker);
const clip = new Clip();
const history = new History(api, clip, at("log"));
const cloning = new CloneDialog(api);
const voices = new VoiceField(api, clip, {
  input: at("voice"),
  list: at("voice-list"),
  named: at("voice-named"),
  about: at("voice-about"),
  preview: at("hear"),
  clone: at("add-voice"),
});
const connection = new Connection(api, at("remote"));
const views = new Views(at("views"));
const talk = new Talk(api, clip);
const nodeView = new NodeView(api, at("node"));

/** The last text, for another try. */
let lastText = "";
/** Refusals in a row; each lengthens the wait before the next try. */
let refusals = 0;
/** Whether the node has answered if it has an agent. */
let askedForAgent = false;
/** Whether the user has typed since the turn began: then Space is a space. */
let typed = false;
/** Characters that a turn may have. */
let mostChars = Infinity;
/** Whether the list of voices is here. */
let hasVoices = false;
/** Name of the voice that a link asks for, until the list of voices is here. */
let carriedVoice = "";
/** Why the session was lost before the last turn was complete; null if it was not. @type {ApiError | null} */
let cutBy = null;
/** Why the last session, or connection of a turn, was lost. @type {ApiError | null} */
let lostBy = null;
/** Whether the network has proved too slow for PCM. */
let slow = false;
/** What the user chose, here or the last time. @type {Record<string, any>} */
const kept = recall("speak") ?? {};

// ---------------------------------------------------------------- the node

connection.ontraffic = (direction, what) => traffic.add(direction, what);
connection.onopen = (session, sink) => {
  session.encoding = slow && connection.transport === "websocket" ? OPUS : null;
  speaker.attach(session, sink);
  for (const kind of ["connection", "engine_lost"]) notices.close(kind);
  if (cutBy) showCut(cutBy);
  at("engine-name").textContent = session.created.engine ?? "";
  at("engine-model").textContent = session.created.model === session.created.engine ? "" : session.created.model;
  mostChars = session.created.limits?.text_context_chars ?? Infinity;
  showSettings();
  const heard = HEARD[session.created.engine ?? ""];
  if (heard) notices.show("heard", { ...heard, calm: true, once: true });
  if (!hasVoices) loadVoices();
  if (!askedForAgent) findAgent();
  nodeView.offer();
};
connection.onlost = (error) => {
  lostBy = error && causeOf(error);
  speaker.detach();
};
connection.onstate = (state, { error, retryMs = 0 }) => {
  showLink();
  at("key-form").hidden = state !== "locked";
  if (state === "locked") {
    at("key").focus();
    if (api.key && error) showError({ code: "wrong_key", message: "" });
  } else if (state === "waiting") {
    showWaiting(causeOf(/** @type {ApiError} */ (error)), retryMs);
  }
  showButtons();
};

/** The node cuts a connection that takes too little, and cannot say so on it. @param {ApiError} error */
function causeOf(error) {
  return slow && error.code === "unreachable" ? new ApiError(0, "slow_consumer", "") : error;
}

/** What the sound travels by, or why it does not. */
function showLink() {
  const words = {
    connecting: "Connecting",
    ready: connection.transport === "webrtc" ? "WebRTC" : "WebSocket",
    waiting: "Not connected",
    resting: "Resting",
    locked: "Locked",
  };
  const inCall = talk.state === "talking";
  at("link").dataset.state = inCall ? "ready" : connection.state;
  at("link-text").textContent = inCall ? "WebRTC" : words[connection.state];
}
talk.onstate = showLink;

/**
 * @param {ApiError} error
 * @param {number} retryMs
 */
function showWaiting(error, retryMs) {
  const known = error.code !== "unreachable";
  notices.close("slow");
  notices.show("connection", {
    title: known ? problemOf(error).title : "The node does not answer",
    body: `${error.code === "forbidden" ? `${error.message}. ` : ""}Trying again in {s}.${known ? "" : " If it stays away, see whether “make serve” is still running."}`,
    actions: [{ label: "Try now", run: () => connection.open() }],
    countdown: { ms: retryMs, run: () => {} },
  });
}

/**
 * Say that the last turn is incomplete, in place of the notice of the lost connection.
 * @param {ApiError} error
 */
function showCut(error) {
  notices.close("slow");
  notices.show("connection", {
    title: error.code === "unreachable" ? "The connection was lost" : problemOf(error).title,
    body: `What had arrived was played to its end; the rest of the text was not spoken.${slow ? ` ${SLOW}` : ""}`,
    actions: [
      { label: "Speak again", run: () => composer.speak(lastText) },
      ...(slow ? [USE_WEBRTC] : []),
      { label: "Close", run: () => {} },
    ],
  });
  cutBy = null;
}

async function loadVoices() {
  try {
    const list = await api.voices();
    voices.fill(list, carriedVoice || (voices.chosen?.name ?? kept.voice));
    if (carriedVoice && voices.chosen?.name !== carriedVoice) showError({ code: "unknown_voice", message: "" });
    carriedVoice = "";
    talk.voice.fill(list);
    const languages = [...new Set(list.voices.flatMap((voice) => voice.languages))];
    const options = languages.map((code) => new Option(languageName(code, list.voices), code));
    options.sort((a, b) => a.text.localeCompare(b.text));
    const language = /** @type {HTMLSelectElement} */ (at("language"));
    language.replaceChildren(new Option("Follow the voice", "auto"), ...options);
    if (languages.includes(kept.language)) language.value = kept.language;
    hasVoices = true;
    showSettings();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    showError(error);
  }
}

/** A node with an agent opens on it, until the user prefers another view. */
async function findAgent() {
  try {
    const agent = await api.agent();
    askedForAgent = true;
    talk.offer(agent);
    views.offer(agent ? (recall("view") ?? "talk") : "speak");
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    // The next session asks again.
  }
}

/** @param {{code: string, message: string, retry_after_ms?: number | null}} error */
function showError(error) {
  const problem = problemOf(error);
  const again = () => composer.speak(lastText);
  const canRetry = problem.retry !== "none" && lastText !== "";
  const ms = Math.min(MOST_RETRY_MS, Math.max(RETRY_MS, error.retry_after_ms ?? 0) * 1.6 ** refusals);
  if (problem.retry === "count") refusals++;
  notices.show(error.code, {
    title: problem.title,
    body: problem.body,
    actions: [
      ...(canRetry ? [{ label: problem.retry === "count" ? "Try now" : "Speak again", run: again }] : []),
      { label: problem.retry === "count" ? "Give up" : "Close", run: () => (refusals = 0) },
    ],
    countdown: problem.retry === "count" && canRetry ? { ms, run: again } : undefined,
  });
}

// ---------------------------------------------------------------- speaking

composer.onbegin = async () => {
  clip.stop();
  typed = false;
  history.begin();
  await unlock(notices);
  if (connection.state !== "ready") await connection.open();
  if (!connection.session) return null;
  for (const kind of ["at_capacity", "engine_lost", "starved", "internal"]) notices.close(kind);
  notices.close("connection");
  cutBy = null;
  const { voice, language, speed, instructions } = choice();
  at("said").lang = language === "auto" ? (voices.chosen?.languages[0] ?? "") : language;
  return speaker.begin({ ...(voice && { voice }), language, speed, ...(instructions && { instructions }) });
};

// A fatal error ends the session, and is told as the reason of that.
speaker.onerror = (error) => {
  if (error.code === "connection_lost") lostBy = causeOf(new ApiError(0, "unreachable", error.message));
  else if (!error.fatal) showError(error);
};
speaker.onlost = () => {
  cutBy = lostBy;
  if (cutBy && connection.session) showCut(cutBy);
};
speaker.onslow = () => {
  if (slow) return;
  slow = true;
  connection.resumesPcm = false; // it would be as slow from another node
  if (connection.session) connection.session.encoding = OPUS;
  const actions = [USE_WEBRTC, { label: "Close", run: () => {} }];
  notices.show("slow", { title: "The network is slow", body: SLOW, actions, calm: true });
};
speaker.onchange = showButtons;
speaker.onsilence = (ms) => {
  meters.set("cancelMs", ms);
  flashSilence(at("flash"), ms);
};
speaker.onoutcome = (outcome) => {
  refusals = 0;
  history.add(outcome);
  at("earlier").hidden = false;
};
history.onerror = showError;
clip.onbegin = () => stop(performance.now());

function showButtons() {
  at("stop-key").textContent = typed || composer.arrival === "live" ? "Esc" : "Space";
  at("stop").toggleAttribute("disabled", !speaker.speaking);
  document.documentElement.toggleAttribute("data-speaking", speaker.speaking);
}

/** @param {number} since */
function stop(since) {
  speaker.stop(since);
  refusals = 0;
  notices.close("at_capacity");
}

at("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!composer.text.trim() && !speaker.writable) return showLimit("There is nothing to say yet: write something here.");
  if (composer.arrival === "live") return composer.finish();
  if (showLimit()) return at("text").focus();
  lastText = composer.text;
  composer.speak(lastText);
});
at("stop").addEventListener("click", (event) => stop(event.timeStamp));
// Out of sight, Stop floats at the edge of the window.
new IntersectionObserver(([{ isIntersecting }]) => at("stop").toggleAttribute("data-away", !isIntersecting)).observe(
  at("composer-row"),
);

// ---------------------------------------------------------------- views

// Only one view plays sound at a time.
views.onchange = (name) => {
  const inTalk = name === "talk";
  /** @type {HTMLAnchorElement} */ (at("skip")).hash = inTalk ? "talk-text" : "text";
  clip.stop();
  if (inTalk) stop(performance.now());
  else talk.hangUp();
};

// ---------------------------------------------------------------- keyboard

// Elements where Space has its own effect; on Speak and Stop it interrupts.
const TAKES_SPACE =
  "textarea, input:not([type=radio], [type=range]), select, summary, a, audio, button:not(#go, #stop, #call, #mute)";

/** @param {Element} target */
const takesSpace = (target) =>
  target === at("text") ? typed || composer.arrival === "live" : target.closest(TAKES_SPACE) !== null;

/** The key's release would otherwise click a focused button. @param {KeyboardEvent} event */
function takeSpace(event) {
  event.preventDefault();
  addEventListener("keyup", (released) => released.preventDefault(), { once: true, capture: true });
}

document.addEventListener("keydown", (event) => {
  const target = /** @type {Element} */ (event.target);
  if (views.shown === "talk") {
    if (event.key !== " " || event.repeat || talk.state !== "talking" || target.closest(TAKES_SPACE)) return;
    takeSpace(event);
    talk.toggleMute();
  } else if (event.key === "Escape" && speaker.speaking && !event.defaultPrevented && !target.closest("dialog")) {
    stop(event.timeStamp);
  } else if (event.key === " " && speaker.speaking && !takesSpace(target)) {
    takeSpace(event);
    stop(event.timeStamp);
  } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    /** @type {HTMLFormElement} */ (at("composer")).requestSubmit();
  }
});

// Browsers allow sound after a gesture: the first one unlocks the audio.
for (const gesture of ["pointerdown", "keydown"]) addEventListener(gesture, () => audioContext(), { once: true });

// ---------------------------------------------------------------- settings

const settings = /** @type {HTMLFormElement} */ (at("settings"));
const snippetForm = /** @type {HTMLFormElement} */ (at("code-form"));

function choice() {
  return {
    base: api.url("."),
    voice: voices.chosen?.name ?? "",
    language: /** @type {HTMLSelectElement} */ (at("language")).value,
    speed: Number(/** @type {HTMLInputElement} */ (at("speed")).value),
    instructions: voices.chosen?.instructions ? /** @type {HTMLTextAreaElement} */ (at("instructions")).value.trim() : "",
    text: composer.text,
    locked: Boolean(api.key),
  };
}

/** Put back what the user chose the last time. Voice and language follow when their lists are here. */
function restore() {
  composer.text = kept.text ?? SAMPLES[0].text;
  follow();
  for (const name of ["arrival", "transport"]) {
    const radio = settings.querySelector(`[name=${name}][value="${CSS.escape(kept[name] ?? "")}"]`);
    if (radio instanceof HTMLInputElement) radio.checked = true;
  }
  for (const id of ["speed", "rate", "instructions"]) {
    if (id in kept) /** @type {HTMLInputElement} */ (at(id)).value = kept[id];
  }
  connection.transport = /** @type {"websocket" | "webrtc"} */ (new FormData(settings).get("transport"));
}

/** Fill in what the page's address carries, once; whether it is spoken is the user's choice. */
function follow() {
  const carried = carriedBy(location.hash);
  if (!carried) return;
  window.history.replaceState(null, "", "#speak");
  composer.text = carried.text;
  carriedVoice = carried.voice;
  if (hasVoices) loadVoices();
}

function keep() {
  const { arrival, transport } = Object.fromEntries(new FormData(settings));
  for (const id of ["text", "speed", "rate", "instructions"]) {
    kept[id] = /** @type {HTMLInputElement} */ (at(id)).value;
  }
  Object.assign(kept, { arrival, transport });
  if (hasVoices) Object.assign(kept, { voice: voices.wanted, language: choice().language });
  remember("speak", kept);
}

function showSettings() {
  const form = new FormData(settings);
  const arrival = /** @type {import("./composer.js").Arrival} */ (form.get("arrival"));
  // A sample is to be read, not typed.
  const isLive = arrival === "live";
  if (isLive && SAMPLES.some(({ text }) => text === composer.text)) composer.text = "";
  if (!isLive && composer.arrival === "live" && !composer.text) composer.text = SAMPLES[0].text;
  at("sample-field").hidden = isLive;
  const { instructions, language } = choice();
  voices.language = language;
  at("instructions-field").hidden = !voices.chosen?.instructions;
  at("styles").hidden = voices.chosen?.name === "design"; // there the instructions say who speaks
  for (const style of /** @type {NodeListOf<HTMLButtonElement>} */ (document.querySelectorAll("#styles button"))) {
    style.setAttribute("aria-pressed", String(style.value === instructions));
  }
  composer.arrival = arrival;
  composer.rate = Number(/** @type {HTMLInputElement} */ (at("rate")).value);
  at("rate-field").hidden = arrival !== "stream";
  at("rate-out").textContent = String(composer.rate);
  at("speed-out").textContent = `${choice().speed.toFixed(1)}×`;
  at("go").textContent = arrival === "live" ? "Say the rest" : "Speak";
  at("composer-hint").textContent =
    isLive ? "Each word is sent as you finish it; Enter ends" : "Ctrl Enter speaks, Esc stops";
  const name = new FormData(snippetForm).get("snippet");
  at("snippet").textContent = SNIPPETS[/** @type {string} */ (name)](choice());
  showButtons();
  showLimit();
  keep();
}

/**
 * Tell the limit of a turn's text once it is near, or why the text cannot be used.
 * @param {string} why
 */
function showLimit(why = "") {
  const chars = composer.arrival === "live" ? 0 : [...composer.text].length;
  const isOver = chars > mostChars;
  const words = `${chars.toLocaleString("en")} of ${mostChars.toLocaleString("en")} characters`;
  const limit = at("limit");
  limit.hidden = !why && chars < NEAR_LIMIT * mostChars;
  limit.textContent = why || (isOver ? `${words}: the node takes no more at once. Speak it in parts.` : words);
  limit.toggleAttribute("data-over", isOver || why !== "");
  if (why) at("text").focus();
  return isOver;
}

settings.addEventListener("input", showSettings);
settings.addEventListener("submit", (event) => event.preventDefault());
at("styles").addEventListener("click", ({ target }) => {
  if (!(target instanceof HTMLButtonElement)) return;
  const field = /** @type {HTMLTextAreaElement} */ (at("instructions"));
  field.value = field.value === target.value ? "" : target.value;
  showSettings();
});
addEventListener("hashchange", () => {
  follow();
  showSettings();
});
at("text").addEventListener("input", () => {
  typed = true;
  showButtons();
  showLimit();
  keep();
});
at("text").addEventListener("change", showSettings);
snippetForm.addEventListener("input", showSettings);
voices.onchange = showSettings;
voices.onerror = (message) => showError({ code: "preview", message });
for (const field of [voices, talk.voice]) {
  field.onclone = (clones) => {
    if (!clones) return (field === voices ? notices : talk.notices).show("clone", CLONE);
    cloning.open(async (name) => {
      const list = await api.voices();
      for (const other of [voices, talk.voice]) other.fill(list, other === field ? name : undefined);
    });
  };
}

for (const radio of document.querySelectorAll("[name=transport]")) {
  radio.addEventListener("change", () => {
    stop(performance.now());
    connection.use(/** @type {any} */ (radio).value);
  });
}

const samples = /** @type {HTMLSelectElement} */ (at("sample"));
samples.append(...SAMPLES.map(({ name }, i) => new Option(name, String(i))));
samples.addEventListener("change", () => {
  const sample = SAMPLES[Number(samples.value)];
  samples.value = "";
  if (!sample) return;
  composer.text = sample.text;
  voices.follow(sample.languages);
  showSettings();
});

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = /** @type {HTMLInputElement} */ (at("key"));
  api.key = field.value;
  field.value = "";
  notices.close("wrong_key");
  connection.open();
});

/**
 * @param {HTMLElement} button
 * @param {() => string | null} read what it copies; null: nothing
 */
function copies(button, read) {
  const label = button.textContent;
  button.addEventListener("click", async () => {
    const text = read();
    if (text === null) return;
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = label), 1_500);
  });
}
for (const button of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("[data-copy]"))) {
  copies(button, () => at(/** @type {string} */ (button.dataset.copy)).innerText);
}
copies(at("copy-link"), () => {
  const link = linkTo(api.url("."), composer.text, choice().voice);
  if (!link) showLimit(`A link carries ${MOST_CHARS.toLocaleString("en")} characters at most.`);
  return link;
});

// ---------------------------------------------------------------- start

bindTheme(at("theme"), () => {
  wave.recolour();
  talk.strip.recolour();
});
restore();
showSettings();
if (isSecureContext) {
  connection.open();
} else {
  notices.show("insecure", {
    title: "This page needs HTTPS, or localhost",
    body: "Browsers give pages from other addresses no audio worklet. Put a TLS proxy before the node, or tunnel its port.",
  });
  findAgent();
}
// A page restored from the browser's history has lost its session.
addEventListener("pageshow", ({ persisted }) => persisted && connection.open());

/** For tests and the console. */
Object.defineProperty(window, "agentTts", {
  value: Object.freeze({
    get transport() {
      return connection.transport;
    },
    get state() {
      return connection.state;
    },
    get speaking() {
      return speaker.speaking;
    },
    get contexts() {
      return [...(connection.session?.contexts.keys() ?? [])];
    },
    get analyser() {
      return views.shown === "talk" ? (talk.sound?.analyser ?? null) : speaker.analyser;
    },
    get call() {
      const { heardMs, silenceMs } = talk.figures;
      return { state: talk.state, notices: talk.notices.kinds, heardMs, silenceMs };
    },
    get lastCancelMs() {
      return meters.values.cancelMs;
    },
    get meters() {
      return { ...meters.values };
    },
    get notices() {
      return notices.kinds;
    },
  }),
});
