/** Keeps the spoken word of a long text in sight. */

/**
 * Scroll to a word, unless the reader has scrolled away from the word before it.
 * @param {Element} box that scrolls
 * @param {Element | null} before
 * @param {Element} word
 */
export function follow(box, before, word) {
  if (box.scrollHeight <= box.clientHeight) return;
  const frame = box.getBoundingClientRect();
  const last = before?.getBoundingClientRect();
  if (last && (last.bottom < frame.top || last.top > frame.bottom)) return;
  const { top, height } = word.getBoundingClientRect();
  box.scrollTop += top + height / 2 - (frame.top + frame.height / 2);
}
