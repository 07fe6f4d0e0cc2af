whet.upgrade();
