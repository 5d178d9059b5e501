/** The line of a long text that is being heard. Pure. */

const MOST = 90; // characters of a line

/**
 * @param {string} text
 * @param {number} heard UTF-16 units of it
 * @returns {[number, number]} where the line begins and ends in the text
 */
export function lineAt(text, heard) {
  const last = Math.max(0, heard - 1);
  let at = 0;
  for (const line of linesOf(text)) {
    const end = at + line.length;
    if (last < end) return [at, end];
    at = end;
  }
  return [at, at];
}

/**
 * Sentences, the long ones in parts of words.
 * @param {string} text
 */
function linesOf(text) {
  const sentences = [...new Intl.Segmenter(undefined, { granularity: "sentence" }).segment(text)];
  return sentences.flatMap(({ segment }) => partsOf(segment));
}

/** @param {string} sentence */
function partsOf(sentence) {
  const parts = [];
  let rest = sentence;
  while (rest.length > MOST) {
    const space = rest.lastIndexOf(" ", MOST);
    const end = space > 0 ? space + 1 : MOST;
    parts.push(rest.slice(0, end));
    rest = rest.slice(end);
  }
  return [...parts, rest];
}
