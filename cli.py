"""Runs the command line from a checkout: `python cli.py ...` is `dflash-mlx ...`."""

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    if any(find_spec(name) is None for name in ("typer", "mlx", "dflash_mlx")):
        sys.exit("dflash-mlx is not installed here; run: pip install -e .")
    from dflash_mlx.commands import main

    sys.exit(main())
