"""`python -m gradweave` is the command `gradweave`."""

from gradweave.cli import main

if __name__ == "__main__":
    main()
