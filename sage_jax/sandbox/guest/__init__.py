"""What runs inside a sandbox: plain scripts of the standard library, started by path and never imported by the host."""
