"""The Dockerfile and the files in deploy/, checked by the tools that read them; `make image` runs the image."""
