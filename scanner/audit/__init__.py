"""Is a stated false-positive rate true? Statistics and experiments that can prove the project's own p-values wrong."""
