"""Is DFlash worth it on this machine? Measured through the path that chat uses."""
