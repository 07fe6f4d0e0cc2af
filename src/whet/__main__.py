from whet.cli import main

main()
