/** The Talk view: a call to the agent, by voice or in writing, and its display. */

import { AgentSound } from "./agent_sound.js";
import { ApiError } from "./api.js";
import { audioContext, unlock } from "./audio.js";
import { Call } from "./call.js";
import { ConversationView } from "./conversation_view.js";
import { Dialogue } from "./dialogue.js";
import { at } from "./dom.js";
import { Figures } from "./figures.js";
import { Level } from "./level.js";
import { CONVERSATION, INSECURE, MicrophoneError, openMicrophone, stopMicrophone } from "./microphone.js";
import { Notices } from "./notices.js";
import { Parts } from "./parts.js";
import { callProblemOf } from "./problems.js";
import { Strip } from "./strip.js";
import { bindSwitch } from "./switch.js";
import { VoiceField } from "./voice_field.js";

const RETRY_MS = 2_000; // at least; the node may ask for more

const STATES = { idle: "", asking: "Waiting for the microphone.", calling: "Calling.", talking: "" };
const PHASES = { listening: "Listening", hearing: "You are speaking", thinking: "Thinking", speaking: "Speaking" };

/** @typedef {keyof typeof STATES} State */

export class Talk {
  onstate = () => {};
  /** @type {State} */
  state = "idle";
  /** Of the agent's voice; null without a call. @type {AgentSound | null} */
  sound = null;
  notices = new Notices(at("talk-notices"));
  strip = new Strip(at("talk-wave"));
  voice;
  figures;
  #api;
  #clip;
  #parts;
  /** @type {Call | null} */
  #call = null;
  /** @type {Dialogue | null} */
  #dialogue = null;
  #view = new ConversationView(at("conversation"), at("subtitle"));
  #level = new Level(at("level"));
  /** Aborts the call that is being set up. */
  #attempt = new AbortController();

  /**
   * @param {import("./api.js").Api} api
   * @param {import("./clip.js").Clip} clip
   */
  constructor(api, clip) {
    this.#api = api;
    this.#clip = clip;
    this.#parts = new Parts(api, at("parts"), this.notices);
    this.#parts.onchange = () => this.#show();
    this.voice = new VoiceField(api, clip, {
      input: at("talk-voice"),
      list: at("talk-voice-list"),
      named: at("talk-voice-named"),
      about: at("talk-voice-about"),
      preview: at("preview"),
      clone: at("clone"),
    });
    this.voice.onchange = (name) => this.#call?.tell("voice", { voice: name });
    this.voice.onerror = (body) => this.#notify("preview", "The voice cannot be heard now", body);
    const places = { waterfall: at("waterfall"), about: at("latency-about"), flash: at("talk-flash") };
    this.figures = new Figures(this.#view, places);
    at("call").addEventListener("click", () => (this.state === "idle" ? this.#begin(true) : this.hangUp()));
    at("mute").addEventListener("click", () => this.toggleMute());
    at("talk-settings").addEventListener("submit", (event) => event.preventDefault());
    at("talk-composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#write(event.timeStamp);
    });
    bindSwitch(at("compact"), "compact", false, (on) => at("talk").toggleAttribute("data-compact", on));
    bindSwitch(at("subtitles"), "subtitles", true, (on) => (at("subtitle").hidden = !on));
    this.#show();
  }

  /** The node's agent, or that it has none. @param {import("./api.js").Agent | null} agent */
  offer(agent) {
    at("talk").toggleAttribute("data-alone", !agent);
    if (!agent) return this.notices.show("none", NO_AGENT);
    this.#parts.tell(agent);
    this.#level.mark(agent.level_db);
    if (!isSecureContext) this.#complain(new MicrophoneError(INSECURE));
  }

  /** Hang up, or abort the set-up; idempotent. */
  hangUp() {
    this.#attempt.abort();
    this.notices.close("at_capacity");
    this.#clip.stop();
    this.#call?.close();
    this.#rest();
  }

  /** Toggle mute; in a text-only call, add the microphone. */
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
      const audio = await audioContext();
      if (call === this.#call) this.#level.watch(audio, microphone);
    }
    this.#show();
  }

  // ---------------------------------------------------------------- the call

  /**
   * @param {boolean} aloud with a microphone, or only written
   * @returns {Promise<boolean>} whether there is a call now
   */
  async #begin(aloud) {
    if (!this.#parts.agent || this.state !== "idle") return this.state === "talking";
    const { signal } = (this.#attempt = new AbortController());
    for (const kind of ["microphone", "at_capacity", "call"]) this.notices.close(kind);
    this.#clip.stop();
    await unlock(this.notices);
    this.#set("asking");
    const microphone = aloud ? await this.#microphone() : null;
    if (signal.aborted) stopMicrophone(microphone);
    else if (aloud && !microphone) this.#set("idle");
    else await this.#connect(microphone, signal);
    return this.#call !== null;
  }

  /** @returns {Promise<MediaStream | null>} null when there is none, after a notice */
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
    const { wanted } = this.voice;
    const options = wanted === null ? {} : { voice: wanted };
    const { ice_servers } = /** @type {import("./api.js").Agent} */ (this.#parts.agent);
    try {
      const audio = await audioContext();
      const call = await Call.open(this.#api, ice_servers, microphone, options, signal);
      if (signal.aborted) return call.close();
      this.#attach(call, audio);
    } catch (error) {
      if (signal.aborted) return;
      this.#call?.close();
      this.#rest();
      if (!(error instanceof ApiError)) throw error;
      this.#refused(error, microphone !== null);
    }
  }

  /**
   * @param {Call} call
   * @param {AudioContext} audio
   */
  #attach(call, audio) {
    this.#call = call;
    this.sound = new AgentSound(audio, call, at("agent-voice"));
    this.sound.oncolumn = (peak, brightness) => this.strip.hear(peak, brightness);
    const dialogue = (this.#dialogue = new Dialogue(call, this.sound));
    this.#view.clear();
    this.figures.clear();
    call.onlost = () => this.#lost();
    dialogue.onchange = () => this.#changed(dialogue.conversation);
    dialogue.onmarks = (turn, marks) => this.figures.mark(turn, marks);
    dialogue.onsilence = (turn, ms) => this.figures.silence(turn, ms);
    dialogue.onnotice = (body) => this.#notify("notice", "The agent says", body, true);
    dialogue.onerror = (body) => this.#notify("agent", "Something of the agent failed", body);
    if (call.microphone) this.#level.watch(audio, call.microphone);
    this.#set("talking");
  }

  #lost() {
    this.#rest();
    const again = { label: "Call again", run: () => void this.#begin(this.#parts.hears) };
    this.notices.show("call", {
      title: "The call was lost",
      body: "The agent or the network went away. What was said stays here until the next call.",
      actions: [again],
    });
  }

  /** Reset to no call; the conversation stays. */
  #rest() {
    this.#dialogue?.end();
    this.#dialogue = this.#call = null;
    this.sound?.close();
    this.sound = null;
    this.#level.rest();
    this.strip.rest();
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
      actions: [{ label: counts ? "Try now" : "Call again", run: again }, CLOSE],
      countdown: counts ? { ms: Math.max(RETRY_MS, error.retryAfterMs ?? 0), run: again } : undefined,
    });
  }

  /** @param {number} since when it was sent, on performance.now's clock */
  async #write(since) {
    const field = /** @type {HTMLInputElement} */ (at("talk-text"));
    const text = field.value.trim();
    if (!text || !isSecureContext || !(this.#dialogue || (await this.#begin(false)))) return;
    this.#dialogue?.write(text, since);
    field.value = "";
  }

  // ---------------------------------------------------------------- display

  /** @param {import("./conversation.js").Conversation} conversation */
  #changed(conversation) {
    this.strip.follow(conversation.spoken);
    this.#view.show(conversation);
    at("phase").textContent = this.state === "talking" ? PHASES[conversation.phase] : "";
  }

  /** @param {MicrophoneError} error */
  #complain({ problem }) {
    this.#notify("microphone", problem.title, problem.body);
  }

  /**
   * Show a notice.
   * @param {string} kind
   * @param {string} title
   * @param {string} body
   * @param {boolean} calm
   */
  #notify(kind, title, body, calm = false) {
    this.notices.show(kind, { title, body, calm, actions: [CLOSE] });
  }

  /** @param {State} state */
  #set(state) {
    this.state = state;
    this.#show();
    this.onstate();
  }

  #show() {
    const { state } = this;
    const call = this.#call;
    const isIdle = state === "idle";
    at("talk").dataset.state = state;
    at("call").textContent = isIdle ? "Start talking" : "Hang up";
    at("call").className = isIdle ? "go" : "stop";
    at("call").toggleAttribute("disabled", isIdle && !this.#parts.hears);
    at("send").toggleAttribute("disabled", !isSecureContext || !this.#parts.agent);
    at("mute").hidden = !call || !this.#parts.hears;
    at("mute").setAttribute("aria-pressed", String(Boolean(call?.microphone && call.muted)));
    at("mute-text").textContent = !call?.microphone ? "Turn on the microphone" : call.muted ? "Unmute" : "Mute";
    at("call-state").textContent = state === "talking" ? callState(call) : isIdle ? this.#parts.idle : STATES[state];
    if (this.#dialogue) this.#changed(this.#dialogue.conversation);
    else at("phase").textContent = "";
  }
}

/** @type {import("./notices.js").Notice} */
const NO_AGENT = {
  title: "This node speaks, but has nobody to talk to",
  body: "In Talk you speak with a voice agent, which hears, thinks and answers. Stop this node, and run `make agent`, or `agent-tts agent --config agent`: speech recognition, a language model and this voice.",
  calm: true,
};
const CLOSE = { label: "Close", run: () => {} };

/** @param {Call | null} call */
function callState(call) {
  if (!call?.microphone) return "In a call, in writing.";
  return call.muted ? "In a call, muted." : "In a call.";
}
