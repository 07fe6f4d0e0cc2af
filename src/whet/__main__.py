from whet.cli import main

if __name__ == "__main__":  # a process that the run starts imports this file too
    main()
