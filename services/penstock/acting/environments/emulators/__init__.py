"""Games in emulators, as environments that Penstock registers with Gymnasium."""
