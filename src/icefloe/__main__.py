"""`python -m icefloe`: the command `icefloe`."""

from icefloe.cli.main import app

if __name__ == "__main__":
    app(prog_name="icefloe")
