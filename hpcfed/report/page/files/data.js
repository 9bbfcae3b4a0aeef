"use strict";
// Numbers of the page: unpacked (the inverse of encode.py), and as people read them.

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function exact(packed) {
  return new Float64Array((await inflate(packed.data)).buffer);
}

// One Float64Array a client; NaN where it has no value.
async function curves(packed) {
  const [n, T] = packed.shape;
  const values = new Float32Array((await inflate(packed.data)).buffer);
  return Array.from({length: n}, (_, k) => Float64Array.from(values.subarray(k * T, (k + 1) * T)));
}

function bytes(n) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (Math.abs(n) < 999.95) return unit === "B" ? `${+n.toPrecision(3)} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1000;
  }
  return `${n.toFixed(1)} TB`;
}

function seconds(s) {
  if (s < 59.95) return s < 9.995 ? `${s.toFixed(2)} s` : `${s.toFixed(1)} s`;
  const minutes = Math.floor(Math.round(s) / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(s) % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const SHOWN = {
  text: value => value,
  count: value => value.toLocaleString("en"),
  share: value => value.toFixed(4),
  number: value => String(+value.toPrecision(4)),
  bytes, seconds,
};

function shown(value, kind) {
  return value === null || value === undefined || Number.isNaN(value) ? "-" : SHOWN[kind](value);
}

// Ticks of an axis with this unit: few characters.
function tick(value, unit) {
  if (unit === "B") return value === 0 ? "0" : bytes(value).replace(/\.0 /, " ");
  return String(+value.toPrecision(4));
}
