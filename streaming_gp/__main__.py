"""``python -m streaming_gp`` is ``streaming-gp``."""

from streaming_gp.command_line import main

if __name__ == "__main__":
    main()
