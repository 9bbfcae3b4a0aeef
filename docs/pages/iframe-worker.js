// Browsers start no worker for a page that lies on a disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.addEventListener("message", event => this.onmessage?.(event))
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.terminate = () => frame.remove()
      this.inside = frame.contentWindow
      const page = frame.contentDocument
      page.open()
      page.write("<body>")
      page.close()
      this.inside.postMessage = data => deliver(this, data)
      this.ready = load(page, url)
      this.inside.importScripts = (...urls) => Promise.all(urls.map(other => load(page, other)))
    }
    postMessage(data) {
      const copy = structuredClone(data)
      this.ready.then(() => deliver(this.inside, copy))
    }
  }
  // As between threads: a copy, and after what runs now.
  function deliver(target, data) {
    const copy = structuredClone(data)
    setTimeout(() => target.dispatchEvent(new MessageEvent("message", { data: copy })))
  }
  function load(page, url) {
    const script = page.createElement("script")
    script.src = url
    page.body.append(script)
    return new Promise(done => { script.onload = done })
  }
}
