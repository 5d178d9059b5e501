/**
 * A client of a speech node, for browsers and Node 22 or newer; in one file without dependencies.
 *
 *     const node = await connect("http://127.0.0.1:8100");
 *     const speech = node.open({ voice: "nova" });
 *     for await (const token of llm) speech.write(token);
 *     speech.end();
 *     for await (const event of speech) if (event.type === "audio") play(event.pcm);
 *
 * `Session` and `Context` are the protocol agent_tts.v1 itself, over any `Transport`.
 */

export const SAMPLE_RATE = 24_000;

const PROTOCOL = "agent_tts.v1";
const HEADER_BYTES = 16; // version u8, kind u8, flags u16, context_no u32, first_sample u64; little-endian
const KIND_AUDIO = 1;
const LAST = 1; // flag of a context's last audio
const OPEN = 1; // `readyState`
const OPEN_TIMEOUT_MS = 8_000;
const GREETING_TIMEOUT_MS = 5_000;
const REQUEST_TIMEOUT_MS = 10_000;

/** An error answer of the node. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0 when the node could not be reached
   * @param {string} code code of the wire protocol, or "unreachable"
   * @param {string} message
   * @param {number | null} retryAfterMs
   */
  constructor(status, code, message, retryAfterMs = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

/**
 * @typedef {object} ConnectOptions
 * @property {string} [apiKey] a key of the node; not for a browser: give it a token
 * @property {string} [token] of `POST /v1/tokens`, good once
 * @property {AbortSignal} [signal] gives up
 * @property {typeof WebSocket} [WebSocket] another class, for a runtime without one: that of the package `ws`
 *
 * @typedef {object} SpeechOptions fields of `context.open`; what is left out is the node's choice
 * @property {string} [model]
 * @property {string} [voice]
 * @property {string} [language]
 * @property {string} [instructions]
 * @property {number} [seed]
 * @property {number} [speed]
 * @property {number} [pitch]
 * @property {number | null} [lead_ms] how far audio runs ahead of real time; null: as fast as it can be made
 * @property {boolean} [normalize]
 * @property {"word" | "none"} [timestamps]
 *
 * @typedef {{type: "audio", pcm: Int16Array, firstSample: number, last: boolean}} AudioEvent 24 kHz, mono
 * @typedef {{type: "words", kind: "estimated" | "aligned", words: Word[]}} WordsEvent
 * @typedef {{type: "mark", name: string, at_ms: number, char_start: number}} MarkEvent
 * @typedef {{type: "context.started", context_no: number, queue_ms: number}} StartedEvent
 * @typedef {{type: "context.flushed", flush_id: string, audio_ms: number}} FlushedEvent
 * @typedef {{type: "context.cancelled", played_ms: number, generated_ms: number, heard_text: string, unheard_text: string}} CancelledEvent
 * @typedef {{type: "context.done", reason: "end" | "cancelled" | "length" | "error", audio_ms: number, ttfa_ms: number | null, rtf: number | null}} DoneEvent
 * @typedef {{type: "warning", code: string, message: string, fields: string[]}} WarningEvent
 * @typedef {AudioEvent | WordsEvent | MarkEvent | StartedEvent | FlushedEvent | CancelledEvent | DoneEvent | WarningEvent} SpeechEvent
 */

/**
 * Connect to a node.
 * @param {string | URL} url of the node: http://127.0.0.1:8100
 * @param {ConnectOptions} options
 * @returns {Promise<SpeechNode>}
 * @throws {ApiError} the node cannot be reached or refuses; the signal's reason where that aborts
 */
export async function connect(url, { apiKey, token, signal, WebSocket: Socket = globalThis.WebSocket } = {}) {
  const base = new URL(url);
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  const socket = new URL("v1/tts/stream", base);
  socket.protocol = socket.protocol.replace("http", "ws");
  const pass = token ?? (apiKey && (await tokenFor(base, apiKey, signal)));
  if (pass) socket.searchParams.set("token", pass);
  const session = await Session.open(socket, signal, Socket);
  await session.greeted(signal);
  return new SpeechNode(session);
}

/**
 * A one-time token: a WebSocket of a browser has no headers.
 * @param {URL} base
 * @param {string} apiKey
 * @param {AbortSignal} [signal]
 */
async function tokenFor(base, apiKey, signal) {
  const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
  /** @type {RequestInit} */
  const init = {
    method: "POST",
    headers: { Authorization: `Bearer ${apiKey}` },
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  };
  const response = await fetch(new URL("v1/tokens", base), init).catch((error) => {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The node does not answer.");
  });
  const body = await response.json().catch(() => null);
  if (response.ok) return String(body.token);
  throw new ApiError(response.status, body?.error?.code ?? "internal", body?.error?.message ?? response.statusText);
}

/** A connection to a node: any number of utterances, one after another or at once. Made by `connect`. */
export class SpeechNode {
  /** The connection is gone; open utterances have failed. @type {(error: ApiError) => void} */
  onclose = () => {};
  #session;
  /** @type {Map<Context, Speech>} */
  #open = new Map();

  /** @param {Session} session greeted */
  constructor(session) {
    this.#session = session;
    session.onmessage = (message, context) => this.#receive(message, context);
    session.onaudio = ({ pcm, firstSample, flags }, context) =>
      this.#open.get(context)?.push({ type: "audio", pcm, firstSample, last: Boolean(flags & LAST) });
    session.onclose = (code, reason) => {
      const error = session.lost(code, reason) ?? new ApiError(0, "closed", "The node has closed an idle connection.");
      this.#fail(error);
      this.onclose(error);
    };
  }

  /** What the node told first: engine, model, limits. */
  get greeting() {
    return this.#session.created;
  }

  /**
   * Begin an utterance. Text may be written at once.
   * @param {SpeechOptions} options
   */
  open(options = {}) {
    const context = this.#session.open(options);
    const speech = new Speech(context);
    this.#open.set(context, speech);
    if (this.#session.closed) this.#fail(new ApiError(0, "closed", "The connection is closed."));
    return speech;
  }

  /** Close the connection; open utterances fail. Idempotent. */
  close() {
    this.#session.close();
    this.#fail(new ApiError(0, "closed", "The connection is closed."));
  }

  /** @param {ApiError} error */
  #fail(error) {
    for (const speech of this.#open.values()) speech.finish(error);
    this.#open.clear();
  }

  /**
   * @param {any} message
   * @param {Context | undefined} context
   */
  #receive(message, context) {
    const speech = context && this.#open.get(context);
    if (!speech) return;
    const isOver = context.done;
    if (isOver) this.#open.delete(context);
    if (message.type === "error") {
      const { code, message: text, retry_after_ms } = message;
      speech.fail(new ApiError(0, code, text, retry_after_ms), isOver);
    } else {
      speech.push(message);
    }
    if (isOver) speech.finish();
  }
}

/** One utterance: text goes in as it is written, events come out as they arrive; iterate over them once. */
export class Speech {
  #context;
  /** Not taken yet. A node sends audio at most `lead_ms` ahead of real time. @type {SpeechEvent[]} */
  #events = [];
  /** @type {ApiError | null} */
  #error = null;
  #isOver = false;
  #arrived = () => {};

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
  }

  /** More text, verbatim: any split, spaces matter. @param {string} text */
  write(text) {
    this.#context.append(text);
  }

  /** Speak all text so far as complete words; `context.flushed` follows its audio. @param {string} flushId */
  flush(flushId = "") {
    this.#context.flush(flushId);
  }

  /** No more text. */
  end() {
    this.#context.end();
  }

  /** What the listener has heard, which makes `heard_text` exact. @param {number} playedMs */
  acknowledge(playedMs) {
    this.#context.acknowledge(playedMs);
  }

  /**
   * Barge-in: no more audio comes; `context.cancelled` tells what was heard.
   * @param {number | null} playedMs what was heard; null: what was acknowledged
   */
  cancel(playedMs = null) {
    this.#events = this.#events.filter(({ type }) => type !== "audio");
    this.#context.cancel(playedMs);
  }

  /** Events up to `context.done`; leaving the loop before it cancels. Throws the `ApiError` that ended the utterance. */
  async *[Symbol.asyncIterator]() {
    try {
      while (true) {
        for (let event; (event = this.#events.shift()); ) yield event;
        if (this.#error) throw this.#error;
        if (this.#isOver) return;
        await /** @type {Promise<void>} */ (new Promise((resolve) => (this.#arrived = resolve)));
      }
    } finally {
      if (!this.#isOver) this.cancel();
    }
  }

  /** For `SpeechNode`. @param {SpeechEvent} event */
  push(event) {
    this.#events.push(event);
    this.#arrived();
  }

  /**
   * For `SpeechNode`.
   * @param {ApiError} error thrown to the reader after the events so far
   * @param {boolean} isOver
   */
  fail(error, isOver) {
    this.#error = error;
    this.#isOver = isOver;
    this.#arrived();
  }

  /** For `SpeechNode`: nothing more comes. @param {ApiError | null} error */
  finish(error = null) {
    this.#error ??= error;
    this.#isOver = true;
    this.#arrived();
  }
}

/**
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
  /** Null where the sound comes as PCM. @type {Decoder | null} */
  decoder = null;
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
  /** How the sound of new contexts is encoded; null: PCM. @type {Encoding | null} */
  encoding = null;
  /** Why the node is going to close the session, if it said so. @type {{code: string, message: string, retry_after_ms?: number} | null} */
  parting = null;
  /** @type {Map<number, Context>} */
  #byNo = new Map();
  #opened = 0;
  #transport;

  /** @param {Transport} transport open; used only here */
  constructor(transport) {
    this.#transport = transport;
    transport.onmessage = (message) => this.#receive(message);
    transport.onaudio = (packet) => this.#audio(packet);
    transport.onclose = (code, reason) => {
      this.closed = true;
      for (const context of this.contexts.values()) context.decoder?.finish();
      this.onclose(code, reason);
    };
  }

  /**
   * Open a session over a WebSocket; `greeted` comes next.
   * @param {URL} url of the socket
   * @param {AbortSignal | null} signal
   * @param {typeof WebSocket} Socket
   * @returns {Promise<Session>} rejects with an `ApiError`, or the signal's reason
   */
  static async open(url, signal = null, Socket = WebSocket) {
    signal?.throwIfAborted();
    const socket = new Socket(url, PROTOCOL);
    socket.binaryType = "arraybuffer";
    const limit = new AbortController();
    try {
      return await new Promise((resolve, reject) => {
        socket.onerror = () => {}; // `ws` throws without it; the close follows
        socket.onclose = ({ code, reason }) => reject(closed(code, reason));
        giveUp(signal, OPEN_TIMEOUT_MS, limit.signal, (error) => {
          reject(error);
          socket.close();
        });
        // Made at once: the package `ws` may have the greeting in the same turn.
        socket.onopen = () => resolve(new Session(new WebSocketTransport(socket)));
      });
    } finally {
      limit.abort();
    }
  }

  /**
   * Wait for the node's greeting, before `onmessage` and `onclose` are set.
   * @param {AbortSignal | null} signal
   * @returns {Promise<void>} rejects with an `ApiError`, or the signal's reason; the session is closed then
   */
  async greeted(signal = null) {
    const limit = new AbortController();
    try {
      await /** @type {Promise<void>} */ (
        new Promise((resolve, reject) => {
          const check = () => {
            if (this.parting) reject(refused(this.parting));
            else if (this.created) resolve();
          };
          this.onclose = (code, reason) => reject(closed(code, reason));
          this.onmessage = check;
          giveUp(signal, GREETING_TIMEOUT_MS, limit.signal, reject);
          check();
        })
      );
    } catch (error) {
      this.close();
      throw error;
    } finally {
      limit.abort();
    }
  }

  /**
   * Why the session was closed; null where an idle one was closed in order.
   * @param {number} code of `onclose`
   * @param {string} reason
   */
  lost(code, reason) {
    if (code === 1000) return null;
    return this.parting ? refused(this.parting) : closed(code, reason);
  }

  /**
   * Open a context; text may be written at once.
   * @param {{voice?: string, language?: string, speed?: number, instructions?: string}} options what the node does not decide itself
   */
  open(options) {
    const context = new Context(this, `turn-${++this.#opened}`);
    this.contexts.set(context.id, context);
    context.decoder = this.encoding?.decoder((chunk) => this.#hear(chunk, context)) ?? null;
    const output = this.encoding && { output: this.encoding.output };
    this.send({ type: "context.open", context_id: context.id, ...options, ...output });
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
    for (const context of this.contexts.values()) context.decoder?.close();
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
    if (message.type === "context.done" && context) this.#over(context);
    if (message.type === "error" && context?.no === null) this.#refused(context);
    this.onmessage(message, context);
  }

  /** @param {Context} context */
  #over(context) {
    context.done = true;
    this.contexts.delete(context.id);
    if (context.no !== null) this.#byNo.delete(context.no);
    if (context.cancelled) context.decoder?.close();
    else context.decoder?.finish();
  }

  /**
   * A context refused before it started gets no `context.done`. Text sent after the refusal may have opened it again
   * with default settings: cancel that one.
   * @param {Context} context
   */
  #refused(context) {
    context.cancel(null);
    this.#over(context);
  }

  /** @param {Packet} packet */
  #audio(packet) {
    const context = this.#byNo.get(packet.contextNo);
    if (!context || context.cancelled) return;
    const { data, ...head } = packet;
    if (context.decoder) context.decoder.push(packet);
    else this.#hear({ ...head, pcm: new Int16Array(data.buffer, data.byteOffset) }, context);
  }

  /**
   * @param {Chunk} chunk
   * @param {Context} context
   */
  #hear(chunk, context) {
    this.ontraffic("audio", chunk);
    if (!context.cancelled) this.onaudio(chunk, context);
  }
}

/**
 * Carries the messages and audio of a session.
 * @typedef {object} Transport
 * @property {(message: object) => void} send ignored once the transport is closed
 * @property {() => void} close idempotent; `onclose` does not follow
 * @property {(message: any) => void} onmessage
 * @property {(packet: Packet) => void} onaudio never called where the audio is a media track
 * @property {(code: number, reason: string) => void} onclose the other side, or the network, closed it
 *
 * @typedef {{contextNo: number, flags: number, firstSample: number, data: Uint8Array<ArrayBuffer>}} Packet in the context's encoding
 * @typedef {{contextNo: number, flags: number, firstSample: number, pcm: Int16Array<ArrayBuffer>}} Chunk pcm at 24 kHz, mono
 *
 * @typedef {object} Decoder of one context
 * @property {(packet: Packet) => void} push
 * @property {() => void} finish no more packets come: closed once those that came are decoded; idempotent
 * @property {() => void} close at once; idempotent
 *
 * @typedef {object} Encoding
 * @property {object} output the field of `context.open` that asks for it
 * @property {(ondecoded: (chunk: Chunk) => void) => Decoder} decoder `ondecoded` is called in the order of the packets
 */

/** @implements {Transport} */
export class WebSocketTransport {
  onmessage = (/** @type {any} */ _message) => {};
  onaudio = (/** @type {Packet} */ _packet) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** @type {WebSocket} */
  #socket;

  /** @param {WebSocket} socket an open one */
  constructor(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => (typeof data === "string" ? this.onmessage(JSON.parse(data)) : this.#audio(data));
    socket.onclose = ({ code, reason }) => this.onclose(code, reason);
  }

  /** @param {object} message */
  send(message) {
    if (this.#socket.readyState === OPEN) this.#socket.send(JSON.stringify(message));
  }

  close() {
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close(1000);
  }

  /** @param {ArrayBuffer} buffer */
  #audio(buffer) {
    const header = new DataView(buffer, 0, HEADER_BYTES);
    if (header.getUint8(0) !== 1 || header.getUint8(1) !== KIND_AUDIO) return;
    this.onaudio({
      flags: header.getUint16(2, true),
      contextNo: header.getUint32(4, true),
      firstSample: Number(header.getBigUint64(8, true)),
      data: new Uint8Array(buffer, HEADER_BYTES),
    });
  }
}

/**
 * Call `fail` once, when the signal aborts or the time is over.
 * @param {AbortSignal | null | undefined} signal
 * @param {number} timeoutMs
 * @param {AbortSignal} settled no more calls; nothing is left waiting
 * @param {(error: unknown) => void} fail
 */
function giveUp(signal, timeoutMs, settled, fail) {
  const timer = setTimeout(() => fail(new ApiError(0, "unreachable", "The node does not answer.")), timeoutMs);
  settled.addEventListener("abort", () => clearTimeout(timer));
  if (signal?.aborted) fail(signal.reason);
  signal?.addEventListener("abort", () => fail(signal.reason), { signal: settled });
}

/** @param {{code: string, message: string, retry_after_ms?: number}} error of the node */
function refused({ code, message, retry_after_ms }) {
  return new ApiError(code === "unauthorized" ? 401 : 503, code, message, retry_after_ms);
}

/**
 * @param {number} code of a WebSocket's close, as far as a browser says why
 * @param {string} reason
 */
function closed(code, reason) {
  if (code === 1008) return new ApiError(401, "unauthorized", reason || "The node asks for a key.");
  if (code === 1013) return new ApiError(503, "at_capacity", reason || "The node is at capacity.", 2_000);
  if (code === 1012) return new ApiError(503, "draining", reason || "The node is shutting down.", 2_000);
  return new ApiError(0, "unreachable", reason || "The node does not answer.");
}
