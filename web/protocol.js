/** A client of the protocol agent_tts.v1, over any transport. */

/**
 * @typedef {import("./transport_ws.js").Transport} Transport
 * @typedef {import("./transport_ws.js").Chunk} Chunk
 * @typedef {{word: string, start_ms: number, end_ms: number, char_start: number, char_end: number}} Word
 * @typedef {{type: string, code: string, message: string, context_id?: string, retry_after_ms?: number, fatal?: boolean}} ErrorMessage
 */

/** One utterance: text goes in as it is written. */
export class Context {
  /** Number of this context in audio headers; null until the node has started it. @type {number | null} */
  no = null;
  /** When the first text left, on performance.now's clock. @type {number | null} */
  sentAt = null;
  ended = false;
  /** Cancelled here: audio that still arrives is dropped. */
  cancelled = false;
  /** The context has ended. */
  done = false;
  #session;

  /**
   * @param {Session} session
   * @param {string} id
   */
  constructor(session, id) {
    this.#session = session;
    this.id = id;
  }

  /** Verbatim: any split, spaces matter. @param {string} text */
  append(text) {
    if (!text || this.ended || this.cancelled) return;
    this.sentAt ??= performance.now();
    for (const part of this.#session.split(text)) {
      this.#session.send({ type: "text.append", context_id: this.id, text: part });
    }
  }

  /** Speak all text so far without waiting for more. @param {string} flushId */
  flush(flushId) {
    if (this.ended || this.cancelled) return;
    this.#session.send({ type: "context.flush", context_id: this.id, flush_id: flushId });
  }

  /** No more text. */
  end() {
    if (this.ended || this.cancelled) return;
    this.ended = true;
    this.#session.send({ type: "context.end", context_id: this.id });
  }

  /**
   * Cancel (barge-in). `playedMs` lets the node work out which text was heard.
   * @param {number | null} playedMs null where the node itself plays the audio
   */
  cancel(playedMs) {
    if (this.cancelled || this.done) return;
    this.cancelled = true;
    const heard = playedMs === null ? {} : { played_ms: Math.round(playedMs) };
    this.#session.send({ type: "context.cancel", context_id: this.id, ...heard });
  }

  /** @param {number} playedMs what the listener has heard */
  acknowledge(playedMs) {
    if (this.cancelled || this.done) return;
    this.#session.send({ type: "playback.ack", context_id: this.id, played_ms: Math.round(playedMs) });
  }
}

export class Session {
  /** The node's first message; null until it is there. @type {any} */
  created = null;
  /** Contexts that are not done. @type {Map<string, Context>} */
  contexts = new Map();
  /** Called for every message of the node, with its context. */
  onmessage = (/** @type {any} */ _message, /** @type {Context | undefined} */ _context) => {};
  onaudio = (/** @type {Chunk} */ _chunk, /** @type {Context} */ _context) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** Sees everything that is sent and received. @type {(direction: "out" | "in" | "audio", what: any) => void} */
  ontraffic = () => {};
  closed = false;
  /** Why the node is going to close the session, if it said so. @type {{code: string, message: string, retry_after_ms?: number} | null} */
  parting = null;
  /** @type {Map<number, Context>} */
  #byNo = new Map();
  #opened = 0;
  #transport;

  /** @param {Transport} transport open; used only here */
  constructor(transport) {
    this.#transport = transport;
    this.transport = transport.name;
    transport.onmessage = (message) => this.#receive(message);
    transport.onaudio = (chunk) => this.#audio(chunk);
    transport.onclose = (code, reason) => {
      this.closed = true;
      this.onclose(code, reason);
    };
  }

  /**
   * Open a context; text may be written at once.
   * @param {{voice?: string, language?: string, speed?: number, instructions?: string}} options what the node does not decide itself
   */
  open(options) {
    const context = new Context(this, `turn-${++this.#opened}`);
    this.contexts.set(context.id, context);
    this.send({ type: "context.open", context_id: context.id, ...options });
    return context;
  }

  /** @param {object} message */
  send(message) {
    if (this.closed) return;
    this.ontraffic("out", message);
    this.#transport.send(message);
  }

  close() {
    if (this.closed) return;
    this.closed = true;
    this.#transport.close();
  }

  /**
   * A text in parts within the node's limit for a message, never cut inside a character.
   * @param {string} text
   */
  split(text) {
    const most = this.created?.limits?.text_message_chars ?? 4_000;
    const characters = [...text];
    const parts = [];
    for (let at = 0; at < characters.length; at += most) parts.push(characters.slice(at, at + most).join(""));
    return parts;
  }

  /** @param {any} message */
  #receive(message) {
    this.ontraffic("in", message);
    const context = this.contexts.get(message.context_id);
    if (message.type === "session.created") this.created = message;
    if (message.type === "session.draining") this.parting = { code: "draining", message: "" };
    if (message.type === "error" && message.fatal) this.parting = message;
    if (message.type === "context.started" && context) {
      context.no = message.context_no;
      this.#byNo.set(message.context_no, context);
    }
    if (message.type === "context.done" && context) {
      context.done = true;
      this.contexts.delete(context.id);
      if (context.no !== null) this.#byNo.delete(context.no);
    }
    this.onmessage(message, context);
  }

  /** @param {Chunk} chunk */
  #audio(chunk) {
    this.ontraffic("audio", chunk);
    const context = this.#byNo.get(chunk.contextNo);
    if (context && !context.cancelled) this.onaudio(chunk, context);
  }
}
