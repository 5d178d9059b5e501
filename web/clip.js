/** Plays one file at a time. The control that started it shows that it sounds, and stops it. */

export class Clip {
  /** A file will sound: other sound must stop. */
  onbegin = () => {};
  #audio = Object.assign(new Audio(), { controls: true, ariaLabel: "What is played" });
  /** Aborts the loading of the file. */
  #attempt = new AbortController();
  /** What started the file that sounds, and its own text. @type {{control: HTMLElement, label: string} | null} */
  #started = null;

  constructor() {
    this.#audio.addEventListener("ended", () => this.stop());
    this.#audio.addEventListener("error", () => this.#audio.src && this.stop());
  }

  /**
   * Play a file, or stop it if this control started it.
   * @param {HTMLElement} control
   * @param {(signal: AbortSignal) => Promise<Blob> | Blob} load
   * @param {HTMLElement} [place] gets the bar to seek on
   * @throws {import("./api.js").ApiError} the file could not be loaded
   */
  async toggle(control, load, place) {
    const sounded = this.#started?.control === control;
    this.stop();
    if (sounded) return;
    this.onbegin();
    const { signal } = (this.#attempt = new AbortController());
    this.#started = { control, label: control.textContent ?? "" };
    control.dataset.sounding = "";
    if (control.textContent) control.textContent = "Stop";
    try {
      const file = await load(signal);
      if (signal.aborted) return;
      this.#audio.src = URL.createObjectURL(file);
      place?.append(this.#audio);
      await this.#audio.play();
    } catch (error) {
      if (signal.aborted) return;
      this.stop();
      throw error;
    }
  }

  /** Idempotent. */
  stop() {
    this.#attempt.abort();
    this.#audio.pause();
    if (this.#audio.src) URL.revokeObjectURL(this.#audio.src);
    this.#audio.removeAttribute("src");
    this.#audio.remove();
    if (!this.#started) return;
    const { control, label } = this.#started;
    this.#started = null;
    delete control.dataset.sounding;
    if (label) control.textContent = label;
  }
}
