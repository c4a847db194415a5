// What does not fit the window, as a list of sentences. tests/docs/test_site.py runs this expression in each page.
(() => {
  const MAY_SCROLL = ".table-wrapper, pre, .highlight";
  const findings = new Set();
  const short = (text) => text.trim().replace(/\s+/g, " ").slice(0, 40);

  const root = document.scrollingElement;
  if (root.scrollWidth > root.clientWidth) findings.add("the page is wider than the window");

  for (const part of document.body.querySelectorAll("*")) {
    const hidden = part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0;
    if (hidden && getComputedStyle(part).overflowX !== "visible" && !part.matches(MAY_SCROLL))
      findings.add(`cut off: ${part.localName}.${part.className}: ${short(part.textContent)}`);
  }

  // A word is on one line, with the hyphens of an option.
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const text = texts.currentNode;
    range.selectNodeContents(text);
    if (text.parentElement.closest("pre, script, style") || range.getClientRects().length < 2) continue;
    for (const word of text.data.matchAll(/(?<![\p{L}\p{N}-])-{1,2}[\p{L}\p{N}]+|[\p{L}\p{N}]+/gu)) {
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = [...range.getClientRects()].filter((line) => line.width > 0);
      if (lines.length > 1 && lines.at(-1).top > lines[0].bottom - 4) findings.add(`broken word: ${word[0]}`);
    }
  }

  // Pictures are drawn on white.
  const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
  for (const picture of document.querySelectorAll("article img"))
    if (isDark && getComputedStyle(picture).filter === "none") findings.add(`picture on white: ${picture.src.slice(-40)}`);

  return [...findings];
})()
