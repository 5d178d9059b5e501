/** The Talk view: a call to the agent, by voice or in writing, and all that is seen of it. */

import { AgentSound } from "./agent_sound.js";
import { ApiError } from "./api.js";
import { audioContext, unlock } from "./audio.js";
import { Call } from "./call.js";
import { CloneDialog } from "./clone.js";
import { ConversationView } from "./conversation_view.js";
import { Dialogue } from "./dialogue.js";
import { Level } from "./level.js";
import { CONVERSATION, INSECURE, MicrophoneError, openMicrophone, stopMicrophone } from "./microphone.js";
import { Notices } from "./notices.js";
import { Preview } from "./preview.js";
import { callProblemOf } from "./problems.js";
import { Strip } from "./strip.js";
import { bindSwitch } from "./switch.js";
import { VoicePicker } from "./voices.js";
import { showWaterfall } from "./waterfall_view.js";

const FLASH_MS = 2_600;
const RETRY_MS = 2_000; // at least; the node may ask for more
const MOST_MARKED = 60; // turns whose figures can be looked up
const LOOK_MS = 5_000; // between two looks at whether what is missing has come: weights take their time

const STATES = { idle: "Not in a call.", asking: "Waiting for the microphone.", calling: "Calling.", talking: "" };
const PHASES = { listening: "Listening", hearing: "You are speaking", thinking: "Thinking", speaking: "Speaking" };
/** What each part of the agent does. */
const PARTS = { stt: "Hears with", llm: "Thinks with", tts: "Speaks with" };

/**
 * @typedef {import("./api.js").Agent} Agent
 * @typedef {keyof typeof STATES} State
 */

/**
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 */
const at = (id) => /** @type {T} */ (document.getElementById(id));

export class Talk {
  /** @type {State} */
  state = "idle";
  /** Of the agent's voice; null without a call. @type {AgentSound | null} */
  sound = null;
  /** What was measured last: time to the first sound heard, and to silence after an interruption, ms. */
  measured = { heardMs: /** @type {number | null} */ (null), silenceMs: /** @type {number | null} */ (null) };
  notices = new Notices(at("talk-notices"));
  voices = new VoicePicker(at("talk-voice"), at("talk-voice-list"), at("talk-voice-about"));
  wave = new Strip(at("talk-wave"));
  #api;
  /** @type {Agent | null} */
  #agent = null;
  /** What of the agent is missing, and what was said about it. @type {Map<string, string>} */
  #lacks = new Map();
  /** @type {Call | null} */
  #call = null;
  /** @type {Dialogue | null} */
  #dialogue = null;
  #view = new ConversationView(at("conversation"), at("subtitle"));
  #level = new Level(at("level"));
  #preview;
  /** Ends the call that is being made. */
  #attempt = new AbortController();
  /** Where the time to each answer went, by turn. @type {Map<number, import("./waterfall.js").Marks>} */
  #marks = new Map();
  /** @type {ReturnType<typeof setTimeout>} */
  #flashing = 0;
  /** @type {ReturnType<typeof setTimeout>} */
  #looking = 0;

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.#api = api;
    this.#preview = new Preview(api);
    this.#preview.onchange = (sounding) => (at("preview").textContent = sounding ? "Stop" : "Preview");
    const clone = new CloneDialog(api);
    clone.onadded = (name) => this.#added(name);
    this.#view.onask = (id) => this.#showMarks(id);
    this.voices.onchange = (voice) => voice && this.#call?.tell("voice", { voice: voice.name });
    at("call").addEventListener("click", () => (this.state === "idle" ? this.#begin(true) : this.hangUp()));
    at("mute").addEventListener("click", () => this.toggleMute());
    at("preview").addEventListener("click", () => this.#listen());
    at("clone").addEventListener("click", () => clone.open());
    at("talk-settings").addEventListener("submit", (event) => event.preventDefault());
    at("talk-composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#write();
    });
    bindSwitch(at("compact"), "compact", false, (on) => at("talk").toggleAttribute("data-compact", on));
    bindSwitch(at("subtitles"), "subtitles", true, (on) => (at("subtitle").hidden = !on));
    this.#show();
  }

  /** There is an agent. @param {Agent} agent */
  offer(agent) {
    this.#agent = agent;
    const rows = Object.entries(PARTS).map(([part, label]) => rowOf(label, agent[/** @type {"stt"} */ (part)]));
    at("parts").replaceChildren(...rows);
    this.#lack("deaf", "The agent cannot hear you", agent.stt.kind === "none", agent.stt.message);
    this.#lack("builtin", "A small built-in responder answers", agent.llm.kind === "builtin", agent.llm.message);
    if (!isSecureContext) this.#complain(new MicrophoneError(INSECURE));
    this.#show();
    clearTimeout(this.#looking);
    if (this.#lacks.size) this.#looking = setTimeout(() => this.#look(), LOOK_MS);
  }

  async #look() {
    const isSeen = at("talk").checkVisibility() && !document.hidden;
    const agent = isSeen ? await this.#api.agent().catch(() => null) : null;
    this.offer(agent ?? /** @type {Agent} */ (this.#agent));
  }

  /**
   * Say what is missing, and say it again only when there is something new to say.
   * @param {string} kind
   * @param {string} title
   * @param {boolean} isMissing
   * @param {string | null} message
   */
  #lack(kind, title, isMissing, message) {
    const body = isMissing ? (message ?? "The node's settings name none.") : "";
    if ((this.#lacks.get(kind) ?? "") === body) return;
    if (isMissing) {
      this.#lacks.set(kind, body);
      this.notices.show(kind, { title, body, calm: true });
    } else {
      this.#lacks.delete(kind);
      this.notices.close(kind);
    }
  }

  /**
   * @param {import("./api.js").Voices} list
   * @param {string} [chosen] name of a voice
   */
  fill(list, chosen = this.voices.chosen?.name) {
    this.voices.fill(list.voices, list.default, chosen);
    at("clone").hidden = !list.clones;
  }

  /** Hang up, or do not call after all; idempotent. */
  hangUp() {
    this.#attempt.abort();
    this.#preview.stop();
    this.#call?.close();
    this.#rest();
  }

  /** Whether the agent hears is turned over; in a call that is only written, it begins to hear. */
  async toggleMute() {
    const call = this.#call;
    if (!call) return;
    if (call.microphone) {
      call.muted = !call.muted;
    } else {
      const microphone = await this.#microphone();
      if (!microphone) return;
      if (call !== this.#call) return stopMicrophone(microphone);
      await call.listen(microphone);
      await this.#meter(microphone);
    }
    this.#show();
  }

  /** Put the focus where one writes. */
  focus() {
    at("talk-text").focus();
  }

  // ---------------------------------------------------------------- the call

  /**
   * @param {boolean} aloud with a microphone, or only written
   * @returns {Promise<boolean>} whether there is a call now
   */
  async #begin(aloud) {
    if (!this.#agent || this.state !== "idle") return this.state === "talking";
    const { signal } = (this.#attempt = new AbortController());
    for (const kind of ["microphone", "at_capacity", "call"]) this.notices.close(kind);
    this.#preview.stop();
    await unlock();
    this.#set("asking");
    const microphone = aloud ? await this.#microphone() : null;
    if (signal.aborted) stopMicrophone(microphone);
    else if (aloud && !microphone) this.#set("idle");
    else await this.#connect(microphone, signal);
    return this.#call !== null;
  }

  /** @returns {Promise<MediaStream | null>} null when there is none, which has been said then */
  async #microphone() {
    try {
      return await openMicrophone(CONVERSATION);
    } catch (error) {
      if (!(error instanceof MicrophoneError)) throw error;
      this.#complain(error);
      return null;
    }
  }

  /**
   * @param {MediaStream | null} microphone
   * @param {AbortSignal} signal
   */
  async #connect(microphone, signal) {
    this.#set("calling");
    const voice = this.voices.chosen?.name;
    const wishes = voice && voice !== this.voices.preferred ? { voice } : {};
    const { ice_servers } = /** @type {Agent} */ (this.#agent);
    try {
      const call = await Call.open(this.#api, ice_servers, microphone, wishes, signal);
      if (signal.aborted) return call.close();
      await this.#attach(call);
    } catch (error) {
      if (signal.aborted) return;
      this.#set("idle");
      if (!(error instanceof ApiError)) throw error;
      this.#refused(error, microphone !== null);
    }
  }

  /** @param {Call} call */
  async #attach(call) {
    const audio = await audioContext();
    this.#call = call;
    this.sound = new AgentSound(audio, call.stream, at("agent-voice"));
    this.sound.oncolumn = (peak, brightness) => this.wave.hear(peak, brightness);
    const dialogue = (this.#dialogue = new Dialogue(call, this.sound));
    this.#view.clear();
    this.#marks.clear();
    call.onlost = () => this.#lost();
    dialogue.onchange = () => this.#changed(dialogue.conversation);
    dialogue.onmarks = (turn, marks) => this.#mark(turn.id, marks);
    dialogue.onsilence = (turn, ms) => this.#flash(turn.id, ms);
    dialogue.onnotice = (body) => this.notices.show("notice", { title: "The agent says", body, calm: true, ...CLOSE });
    dialogue.onerror = (body) => this.notices.show("agent", { title: "Something of the agent failed", body, ...CLOSE });
    if (call.microphone) await this.#meter(call.microphone);
    this.#set("talking");
  }

  /** @param {MediaStream} microphone */
  async #meter(microphone) {
    this.#level.watch(await audioContext(), microphone);
  }

  #lost() {
    this.#rest();
    const again = { label: "Call again", run: () => void this.#begin(this.#canHear) };
    this.notices.show("call", {
      title: "The call was lost",
      body: "The agent or the network went away. What was said stays here until the next call.",
      actions: [again],
    });
  }

  /** Nothing of a call is left but what was said. */
  #rest() {
    this.#dialogue?.end();
    this.#dialogue = this.#call = null;
    this.sound?.close();
    this.sound = null;
    this.#level.rest();
    this.wave.rest();
    this.#set("idle");
  }

  /**
   * @param {ApiError} error
   * @param {boolean} aloud
   */
  #refused(error, aloud) {
    const { title, body, retry } = callProblemOf(error);
    const again = () => void this.#begin(aloud);
    const counts = retry === "count";
    this.notices.show(counts ? "at_capacity" : "call", {
      title,
      body,
      actions: [{ label: counts ? "Try now" : "Call again", run: again }, ...CLOSE.actions],
      countdown: counts ? { ms: Math.max(RETRY_MS, error.retryAfterMs ?? 0), run: again } : undefined,
    });
  }

  async #write() {
    const field = /** @type {HTMLInputElement} */ (at("talk-text"));
    const text = field.value.trim();
    if (!text || !isSecureContext || !(this.#dialogue || (await this.#begin(false)))) return;
    this.#dialogue?.write(text);
    field.value = "";
  }

  // ---------------------------------------------------------------- what is seen

  /** @param {import("./conversation.js").Conversation} conversation */
  #changed(conversation) {
    this.wave.follow(conversation.spoken);
    this.#view.show(conversation);
    at("phase").textContent = this.state === "talking" ? PHASES[conversation.phase] : "";
  }

  /**
   * @param {number} id of a turn
   * @param {import("./waterfall.js").Marks} marks
   */
  #mark(id, marks) {
    this.#marks.set(id, marks);
    if (this.#marks.size > MOST_MARKED) this.#marks.delete(this.#marks.keys().next().value ?? 0);
    this.measured.heardMs = marks.heard;
    this.#view.time(id, this.#showMarks(id));
  }

  /** @param {number} id of a turn */
  #showMarks(id) {
    const totalMs = showWaterfall(at("waterfall"), this.#marks.get(id) ?? {});
    at("latency-about").textContent = `From the end of your words: ${Math.round(totalMs)} ms.`;
    return totalMs;
  }

  /**
   * @param {number} id of a turn
   * @param {number} ms
   */
  #flash(id, ms) {
    this.measured.silenceMs = ms;
    this.#view.silence(id, ms);
    const flash = at("talk-flash");
    flash.textContent = `silence in ${Math.round(ms)} ms`;
    flash.dataset.on = "";
    clearTimeout(this.#flashing);
    this.#flashing = setTimeout(() => delete flash.dataset.on, FLASH_MS);
  }

  /** @param {MicrophoneError} error */
  #complain({ problem }) {
    this.notices.show("microphone", { ...problem, ...CLOSE });
  }

  get #canHear() {
    return this.#agent !== null && this.#agent.stt.kind !== "none" && isSecureContext;
  }

  /** @param {State} state */
  #set(state) {
    this.state = state;
    this.#show();
  }

  #show() {
    const { state } = this;
    const call = this.#call;
    const isIdle = state === "idle";
    at("talk").dataset.state = state;
    at("call").textContent = isIdle ? "Start talking" : "Hang up";
    at("call").className = isIdle ? "go" : "stop";
    at("call").toggleAttribute("disabled", isIdle && !this.#canHear);
    at("send").toggleAttribute("disabled", !isSecureContext);
    at("mute").hidden = !call || !this.#canHear;
    at("mute").setAttribute("aria-pressed", String(Boolean(call?.microphone && call.muted)));
    at("mute-text").textContent = !call?.microphone ? "Turn on the microphone" : call.muted ? "Unmute" : "Mute";
    at("call-state").textContent = state !== "talking" ? STATES[state] : callState(call);
    if (state !== "talking") at("phase").textContent = "";
    else if (this.#dialogue) this.#changed(this.#dialogue.conversation);
  }

  // ---------------------------------------------------------------- voices

  async #listen() {
    if (at("preview").textContent === "Stop") return this.#preview.stop();
    const { chosen } = this.voices;
    if (!chosen) return;
    try {
      await this.#preview.play(chosen);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.notices.show("preview", { title: "The voice cannot be heard now", body: error.message, ...CLOSE });
    }
  }

  /** @param {string} name of a voice that has been cloned */
  async #added(name) {
    this.fill(await this.#api.voices(), name);
  }
}

const CLOSE = { actions: [{ label: "Close", run: () => {} }] };

/** @param {Call | null} call */
function callState(call) {
  if (!call?.microphone) return "In a call, in writing.";
  return call.muted ? "In a call, muted." : "In a call.";
}

/**
 * @param {string} label
 * @param {import("./api.js").Part} part
 */
function rowOf(label, { kind, name, message }) {
  const row = document.createElement("div");
  row.appendChild(document.createElement("dt")).textContent = label;
  const value = row.appendChild(document.createElement("dd"));
  value.textContent = kind === "none" ? "nothing" : name;
  if (message) value.appendChild(document.createElement("small")).textContent = message;
  return row;
}
