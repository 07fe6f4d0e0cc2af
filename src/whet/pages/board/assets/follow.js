// A page that is written anew by the server whenever something changes.
board.listen(board.calmly(board.refresh));
