"use strict";
// Returns a CSV field (RFC 4180). A text that a spreadsheet would take for a formula gets an apostrophe.
function field(text) {
  if (/^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text))) text = "'" + text;
  return /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
}
function csv(table) {
  const rows = [...table.rows].filter((row) => getComputedStyle(row).display !== "none");
  const value = (cell) => field(cell.dataset.v ?? cell.textContent);
  return rows.map((row) => [...row.cells].map(value).join(",")).join("\r\n") + "\r\n";
}
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // An older way, for browsers that give pages from files no clipboard.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.hidden = false;
  const words = button.textContent;
  button.addEventListener("click", async () => {
    const table = button.previousElementSibling.querySelector("table");
    button.textContent = (await copy(csv(table))) ? "Copied" : "The browser refused to copy";
    button.focus();
    setTimeout(() => (button.textContent = words), 2000);
  });
}
// A printed page has every table, except those of many pages.
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not([open])")) {
    if (details.querySelectorAll("tr").length > 60) continue;
    details.open = true;
    details.dataset.closed = "";
  }
});
addEventListener("afterprint", () => {
  for (const details of document.querySelectorAll("details[data-closed]")) {
    details.open = false;
    delete details.dataset.closed;
  }
});
