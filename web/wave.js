/**
 * The waveform: turns on a time line that moves past a fixed playhead.
 *
 * Left of it is what was heard, right of it what is ready to be heard. Bars are 20 ms; their colour separates
 * vowels from hissing consonants. With reduced motion the page stands still while the playhead moves.
 */

export const COLUMN_SAMPLES = 480; // at 24 kHz: a quarter of the node's 80 ms frame
const COLUMN_MS = 20;
const PITCH = 4; // px from bar to bar
const BAR = 2.4; // px
const PX_PER_MS = PITCH / COLUMN_MS;
const GAP_MS = 400; // between turns
const PLAYHEAD = 0.62; // of the width
const CALM_FPS = 4; // frames a second with reduced motion
const FALL_MS = 700; // fade-out of cut sound on the screen
const TONES = 6; // shades between voice and hiss
const MOST_TURNS = 12;
const MOST_JITTER = 4; // columns

/**
 * @typedef {object} Strip one turn
 * @property {number} at ms on the time line
 * @property {number[]} peaks 0..1 a column
 * @property {number[]} tones 0..TONES-1 a column
 * @property {number | null} cutMs where it was cut, ms of the turn
 * @property {number} cutAt when that was, on performance.now's clock
 */

export class Wave {
  #canvas;
  #paint;
  /** @type {Strip[]} */
  #strips = [];
  /** The playhead's place in the last strip, ms. */
  #playedMs = 0;
  /** Whether an animation runs. */
  #live = false;
  #drawnAt = 0;
  #frame = 0;
  #width = 0;
  #height = 0;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");
  /** @type {{voice: string[], cut: string, ink: string, muted: string}} */
  #colours = { voice: [], cut: "", ink: "", muted: "" };

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.#canvas = canvas;
    this.#paint = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    new ResizeObserver(() => this.#resize()).observe(canvas);
    this.#calm.addEventListener("change", () => this.#wake());
  }

  /** Begin a turn at the right end. */
  begin() {
    const last = this.#strips.at(-1);
    if (last) truncate(last, this.#playedMs);
    const at = last ? last.at + Math.min(this.#playedMs, lengthOf(last)) + GAP_MS : 0;
    this.#strips.push({ at, peaks: [], tones: [], cutMs: null, cutAt: 0 });
    if (this.#strips.length > MOST_TURNS) this.#strips.shift();
    this.#playedMs = 0;
    this.#live = true;
    this.#wake();
  }

  /**
   * Add sound that will be heard.
   * @param {Int16Array} pcm
   * @param {number} firstSample
   */
  push(pcm, firstSample) {
    const strip = this.#strips.at(-1);
    if (!strip) return;
    for (let from = 0; from < pcm.length; from += COLUMN_SAMPLES) {
      const to = Math.min(from + COLUMN_SAMPLES, pcm.length);
      let peak = 0;
      let crossings = 0;
      for (let i = from; i < to; i++) {
        peak = Math.max(peak, Math.abs(pcm[i]));
        if (i > from && pcm[i] < 0 !== pcm[i - 1] < 0) crossings++;
      }
      setColumn(strip, Math.floor((firstSample + from) / COLUMN_SAMPLES), peak / 32768, crossings / (to - from));
    }
  }

  /**
   * Add sound that is heard now and was not added before.
   * @param {number} peak
   * @param {number} brightness zero crossings a sample
   */
  hear(peak, brightness) {
    const strip = this.#strips.at(-1);
    if (!strip || strip.cutMs !== null) return;
    const column = Math.floor(this.#playedMs / COLUMN_MS);
    // Columns and the playhead have two clocks: a short gap between them is jitter.
    const from = column - strip.peaks.length < MOST_JITTER ? Math.min(strip.peaks.length, column) : column;
    for (let i = from; i <= column; i++) setColumn(strip, i, peak, brightness);
  }

  /** @param {number} playedMs of the turn */
  seek(playedMs) {
    this.#playedMs = playedMs;
    this.#wake();
  }

  /** Cut the turn at the playhead; idempotent. */
  cut() {
    const strip = this.#strips.at(-1);
    if (!strip || strip.cutMs !== null) return;
    strip.cutMs = this.#playedMs;
    strip.cutAt = performance.now();
    this.rest();
  }

  /** Stop until the next turn. */
  rest() {
    this.#live = false;
    this.#wake();
  }

  /** The colours have changed. */
  recolour() {
    const style = getComputedStyle(document.documentElement);
    const read = (/** @type {string} */ name) => style.getPropertyValue(name);
    const shade = (/** @type {number} */ i) => mix(read("--voice"), read("--hiss"), i / (TONES - 1));
    this.#colours = {
      voice: Array.from({ length: TONES }, (_, i) => shade(i)),
      cut: read("--cut"),
      ink: read("--ink"),
      muted: read("--muted"),
    };
    this.#wake();
  }

  #resize() {
    const { clientWidth, clientHeight } = this.#canvas;
    const scale = devicePixelRatio || 1;
    this.#width = clientWidth;
    this.#height = clientHeight;
    this.#canvas.width = Math.round(clientWidth * scale);
    this.#canvas.height = Math.round(clientHeight * scale);
    this.#paint.setTransform(scale, 0, 0, scale, 0, 0);
    this.#draw();
  }

  /** Draw in the next animation frame, and repeat while an animation runs. */
  #wake() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame((now) => {
      this.#frame = 0;
      const due = !this.#calm.matches || now - this.#drawnAt >= 1000 / CALM_FPS || !this.#live;
      if (due) {
        this.#drawnAt = now;
        this.#draw();
      }
      const last = this.#strips.at(-1);
      const falls = last?.cutMs != null && performance.now() - last.cutAt < FALL_MS;
      if (this.#live || falls) this.#wake();
    });
  }

  #draw() {
    const paint = this.#paint;
    paint.clearRect(0, 0, this.#width, this.#height);
    const middle = Math.round(this.#height / 2);
    const last = this.#strips.at(-1);
    const now = last ? last.at + this.#playedMs : 0;
    const { origin, head } = this.#view(now);
    this.#drawGround(middle, head);
    for (const strip of this.#strips) this.#drawStrip(strip, strip === last, origin, head, middle);
    this.#drawHead(head, middle);
  }

  /**
   * Positions of the time line: x of its zero, and x of the playhead.
   * @param {number} now ms on the time line
   */
  #view(now) {
    if (!this.#calm.matches) {
      const head = Math.round(this.#width * PLAYHEAD);
      return { origin: head - now * PX_PER_MS, head };
    }
    const pageMs = Math.max(1, (this.#width * 0.9) / PX_PER_MS);
    const origin = this.#width * 0.05 - Math.floor(now / pageMs) * pageMs * PX_PER_MS;
    return { origin, head: Math.round(origin + now * PX_PER_MS) };
  }

  /**
   * @param {number} middle
   * @param {number} head
   */
  #drawGround(middle, head) {
    const paint = this.#paint;
    paint.globalAlpha = 0.4;
    paint.fillStyle = this.#colours.muted;
    const first = (((head + PITCH / 2) % PITCH) + PITCH) % PITCH;
    for (let x = first; x < this.#width; x += PITCH) paint.fillRect(x - 0.6, middle - 0.6, 1.2, 1.2);
    paint.globalAlpha = 1;
  }

  /**
   * @param {Strip} strip
   * @param {boolean} isLast
   * @param {number} origin
   * @param {number} head
   * @param {number} middle
   */
  #drawStrip(strip, isLast, origin, head, middle) {
    const paint = this.#paint;
    const start = origin + strip.at * PX_PER_MS;
    const from = Math.max(0, Math.floor(-start / PITCH));
    const to = Math.min(strip.peaks.length, Math.ceil((this.#width - start) / PITCH));
    const fallen = strip.cutMs === null ? 0 : Math.min(1, (performance.now() - strip.cutAt) / FALL_MS);
    const fall = this.#calm.matches ? 1 : 1 - (1 - fallen) ** 3;
    /** Bars of one colour are filled together. @type {Map<string, Path2D>} */
    const heard = new Map();
    const ahead = new Map();
    const cut = new Path2D();
    for (let i = from; i < to; i++) {
      const x = start + i * PITCH + PITCH / 2;
      let half = Math.max(0.8, strip.peaks[i] ** 0.72 * (middle - 10));
      const isCut = strip.cutMs !== null && i * COLUMN_MS >= strip.cutMs;
      if (isCut) half = Math.max(0.8, half * (1 - 0.82 * fall));
      const group = isLast && x > head ? ahead : heard;
      const path = isCut ? cut : pathOf(group, this.#colours.voice[strip.tones[i]]);
      path.roundRect(x - BAR / 2, middle - half, BAR, 2 * half, BAR / 2);
    }
    for (const [colour, path] of heard) fill(paint, path, colour, 1);
    for (const [colour, path] of ahead) fill(paint, path, colour, 0.38);
    fill(paint, cut, this.#colours.cut, 1 - 0.4 * fall);
  }

  /**
   * @param {number} x
   * @param {number} middle
   */
  #drawHead(x, middle) {
    const paint = this.#paint;
    paint.fillStyle = this.#colours.ink;
    paint.fillRect(x - 0.5, 6, 1, 2 * middle - 12);
    paint.beginPath();
    paint.arc(x, 6, 2.5, 0, 2 * Math.PI);
    paint.arc(x, 2 * middle - 6, 2.5, 0, 2 * Math.PI);
    paint.fill();
  }
}

/**
 * @param {Strip} strip
 * @param {number} column
 * @param {number} peak
 * @param {number} brightness
 */
function setColumn(strip, column, peak, brightness) {
  while (strip.peaks.length < column) {
    strip.peaks.push(0);
    strip.tones.push(0);
  }
  const hiss = Math.min(1, Math.max(0, (brightness - 0.05) / 0.3));
  strip.peaks[column] = peak;
  strip.tones[column] = Math.round(hiss * (TONES - 1));
}

/**
 * Remove the sound that was never heard.
 * @param {Strip} strip
 * @param {number} playedMs
 */
function truncate(strip, playedMs) {
  const heard = strip.cutMs ?? Math.max(playedMs, 0);
  strip.peaks.length = Math.min(strip.peaks.length, Math.ceil(heard / COLUMN_MS));
  strip.tones.length = strip.peaks.length;
}

/** @param {Strip} strip */
function lengthOf(strip) {
  return strip.peaks.length * COLUMN_MS;
}

/**
 * @param {Map<string, Path2D>} paths
 * @param {string} colour
 */
function pathOf(paths, colour) {
  let path = paths.get(colour);
  if (!path) paths.set(colour, (path = new Path2D()));
  return path;
}

/**
 * @param {CanvasRenderingContext2D} paint
 * @param {Path2D} path
 * @param {string} colour
 * @param {number} alpha
 */
function fill(paint, path, colour, alpha) {
  paint.globalAlpha = alpha;
  paint.fillStyle = colour;
  paint.fill(path);
  paint.globalAlpha = 1;
}

/**
 * @param {string} from an `rgb()` colour
 * @param {string} to
 * @param {number} part 0..1
 */
function mix(from, to, part) {
  const [a, b] = [from, to].map((colour) => (colour.match(/[\d.]+/g) ?? []).map(Number));
  return `rgb(${[0, 1, 2].map((i) => Math.round(a[i] + (b[i] - a[i]) * part)).join(" ")})`;
}
