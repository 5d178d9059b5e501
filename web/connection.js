/**
 * Keeps one session: opened at once, reopened with growing delays when it is lost. It goes on at another node where that
 * is found in time.
 */

import { ApiError } from "./api.js";
import { audioContext } from "./audio.js";
import { MovingTransport, Session } from "./client.js";
import { Player } from "./player.js";
import { RemoteAudio } from "./remote.js";
import { WebRtcDialer } from "./transport_rtc.js";

const FIRST_DELAY_MS = 500;
const MOST_DELAY_MS = 10_000;

/**
 * @typedef {import("./player.js").Sink} Sink
 * @typedef {"connecting" | "ready" | "waiting" | "resting" | "locked"} State `waiting`: tries again by itself;
 *   `resting`: the node closed an idle session, the next use opens one; `locked`: needs a key
 */

export class Connection {
  /** @type {State} */
  state = "connecting";
  /** @type {(state: State, detail: {error?: ApiError, retryMs?: number}) => void} */
  onstate = () => {};
  /** A session is open; the sink is the callee's. @type {(session: Session, sink: Sink) => void} */
  onopen = () => {};
  /** The session is gone. @type {(error: ApiError | null) => void} `error`: null when it was closed in order */
  onlost = () => {};
  /** Passed on to every session. @type {Session["ontraffic"]} */
  ontraffic = () => {};
  /** @type {"websocket" | "webrtc"} */
  transport = "websocket";
  /** Whether a turn in PCM, too, goes on at another node when its own is lost. */
  resumesPcm = true;
  /** @type {Session | null} */
  session = null;
  #api;
  #element;
  /** Aborts the running attempt. */
  #attempt = new AbortController();
  #failures = 0;
  /** @type {ReturnType<typeof setTimeout>} */
  #timer = 0;

  /**
   * @param {import("./api.js").Api} api
   * @param {HTMLAudioElement} element plays WebRTC's audio
   */
  constructor(api, element) {
    this.#api = api;
    this.#element = element;
  }

  /**
   * Use this transport from now on.
   * @param {"websocket" | "webrtc"} transport
   */
  use(transport) {
    this.transport = transport;
    this.close();
    this.open();
  }

  /** Open a session now. */
  async open() {
    this.close();
    const attempt = (this.#attempt = new AbortController());
    this.#set("connecting");
    try {
      const [session, sink] = await this.#connect(attempt.signal);
      if (attempt.signal.aborted) {
        session.close();
        sink.close();
        return;
      }
      this.#failures = 0;
      this.session = session;
      session.onclose = (code, reason) => this.#lost(code, reason);
      this.onopen(session, sink);
      this.#set("ready");
    } catch (error) {
      if (!attempt.signal.aborted) this.#failed(error);
    }
  }

  /** Close the session; idempotent. */
  close() {
    this.#attempt.abort();
    clearTimeout(this.#timer);
    if (!this.session) return;
    this.session.close();
    this.session = null;
    this.onlost(null);
  }

  /**
   * @param {AbortSignal} signal
   * @returns {Promise<[Session, Sink]>}
   */
  async #connect(signal) {
    const audio = await audioContext();
    const remote = this.transport === "webrtc" ? new RemoteAudio(audio, this.#element) : null;
    const dialer = remote && new WebRtcDialer(this.#api, (stream) => remote.follow(stream));
    // The address where a node asks to go may be none that serves this page: its own leads to the same nodes.
    const dial = async (/** @type {string | null} */ _address, /** @type {AbortSignal} */ giveUp = signal) => {
      if (dialer) return dialer.dial(giveUp);
      const session = await Session.open(await this.#api.socketUrl(), giveUp);
      await session.greeted(giveUp);
      return session;
    };
    const resumes = (/** @type {any} */ { encoding }) => this.resumesPcm || dialer || encoding;
    const session = new Session(new MovingTransport(await dial(null), dial, resumes));
    session.ontraffic = (direction, what) => this.ontraffic(direction, what);
    await session.greeted(signal);
    return [session, remote ?? new Player(audio)];
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #lost(code, reason) {
    const error = this.session?.lost(code, reason) ?? null;
    this.session = null;
    this.onlost(error);
    if (error) this.#failed(error);
    else this.#set("resting");
  }

  /** @param {unknown} error */
  #failed(error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) this.#set("locked", { error });
    else this.#later(error);
  }

  /** @param {ApiError} error why not now */
  #later(error) {
    const patience = Math.min(MOST_DELAY_MS, FIRST_DELAY_MS * 2 ** this.#failures++);
    const retryMs = Math.max(error.retryAfterMs ?? 0, patience * (0.8 + 0.4 * Math.random()));
    this.#timer = setTimeout(() => this.open(), retryMs);
    this.#set("waiting", { error, retryMs });
  }

  /**
   * @param {State} state
   * @param {{error?: ApiError, retryMs?: number}} detail
   */
  #set(state, detail = {}) {
    this.state = state;
    this.onstate(state, detail);
  }
}
