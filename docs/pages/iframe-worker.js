// Browsers start no worker for a page that lies on a disk. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      const page = frame.contentDocument
      page.open()
      page.write("<body>")
      page.close()
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = load(page, url)
      this.inside.importScripts = (...urls) => Promise.all(urls.map(other => load(page, other)))
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  function load(page, url) {
    const script = page.createElement("script")
    script.src = url
    page.body.append(script)
    return new Promise(done => { script.onload = done })
  }
}
