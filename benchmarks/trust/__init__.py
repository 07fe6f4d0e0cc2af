"""What was tried to fool whet, to break out of it and to break it: corpora, generators and their figures."""
