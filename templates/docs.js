"use strict";

const LONGEST_SHOWN = 20000;

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const block = button.parentElement.querySelector("pre");
    button.textContent = (await copy(textOf(block))) ? "Copied" : select(block);
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// The text of a block, with the key that was entered in the place of the one to be filled in.
function textOf(block) {
  const filled = block.cloneNode(true);
  const key = document.getElementById("key").value.trim();
  const blank = filled.querySelector(".your-key");
  if (blank && /^[\w-]+$/.test(key)) blank.textContent = key;
  return filled.textContent.trim();
}

// Browsers give pages over plain HTTP no clipboard, except those of the same machine.
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.className = "unseen";
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy");
    area.remove();
    return copied;
  }
}

function select(block) {
  getSelection().selectAllChildren(block);
  return "Selected";
}

for (const form of document.querySelectorAll(".try form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    call(form);
  });
}

async function call(form) {
  const button = form.querySelector("button");
  const outcome = form.querySelector(".outcome");
  const answer = form.querySelector(".answer");
  const headers = { "Content-Type": "application/json" };
  const key = document.getElementById("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  button.disabled = true;
  outcome.textContent = "calling…";
  const began = performance.now();
  try {
    const response = await fetch(form.dataset.path, { method: "POST", headers, body: form.querySelector("textarea").value });
    const text = await response.text();
    outcome.textContent = `${response.status} in ${Math.round(performance.now() - began)} ms`;
    answer.textContent = shorten(pretty(text));
  } catch (error) {
    outcome.textContent = "no answer";
    answer.textContent = String(error);
  } finally {
    answer.hidden = false;
    button.disabled = false;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function shorten(text) {
  return text.length <= LONGEST_SHOWN ? text : `${text.slice(0, LONGEST_SHOWN)}\n…`;
}
