"""`python cli.py ...` in a checkout does what the installed `dflash-mlx ...` does."""

import sys
from importlib.util import find_spec

if __name__ == "__main__":
    # convert/ and metal/ get their place inside the package when it is installed
    if any(find_spec(name) is None for name in ("typer", "mlx", "dflash_mlx.convert")):
        sys.exit("dflash-mlx is not installed here; run: pip install -e .")
    from dflash_mlx.commands import main

    sys.exit(main())
