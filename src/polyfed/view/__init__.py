"""`polyfed view`: a local page that follows runs as they write. It reads, and only below its folder; without torch."""
