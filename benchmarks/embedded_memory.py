"""How much memory does the embedded pair need beyond its weights and caches?

    python benchmarks/embedded_memory.py

Prints three of MLX's figures: the peak while loading (bound: stored plus used weights), the peak of
decoding 512 tokens after a 256-token prompt (bound: models plus caches plus 15%), and the memory
beyond the caches over 4,000 tokens (expected: constant). The last line is JSON.
"""

import json

import dflash_mlx


def main() -> None:
    dflash_mlx.use_openblas()
    with dflash_mlx.load("smollm2-135m") as engine:
        engine.worker.run(lambda: memory(engine.loaded))


def memory(loaded):
    """Print MLX's peaks and the sizes of models and caches."""
    import mlx.core as mx

    from dflash_mlx.hub.resolve import find_packaged
    from dflash_mlx.loading.compute import compute_here, weight_bytes
    from dflash_mlx.loading.target import load_target

    pair = loaded.pair
    models = weight_bytes(pair.target.model) + weight_bytes(pair.draft.model)
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    path = find_packaged(loaded.model_name)
    again = load_target(path, compute_here())
    load_peak = mx.get_peak_memory() - before
    stored_and_used = path.stat().st_size + weight_bytes(again.target.model)
    del again
    mx.clear_cache()
    print(f"load: peak {load_peak / 1e6:.0f} MB, stored + used {stored_and_used / 1e6:.0f} MB")
    report = {"load_peak": load_peak, "stored_and_used": stored_and_used}

    ids = loaded.tokenizer.encode("one two three four " * 80)[:256]
    cache, peak = decode_with_peak(pair, ids, 512)
    bound = models + cache.nbytes
    print(
        f"256 + 512 tokens: peak {peak / 1e6:.0f} MB, models + caches {bound / 1e6:.0f} MB", end=""
    )
    print(f" ({peak / bound - 1:+.1%})")
    report |= {"decode_peak": peak, "models_and_caches": bound}
    del cache
    mx.clear_cache()

    idle = mx.get_active_memory()
    for done, active, held in decode_with_marks(pair, ids, 4000, 500):
        extra = active - idle - held
        print(f"{done:5} tokens: caches {held / 1e6:6.1f} MB, beyond them {extra / 1e6:5.1f} MB")
        report[f"beyond_caches_at_{done}"] = extra
    print(json.dumps(report))


def loop(pair, ids, n_tokens):
    """Decode greedily without a stop condition; yield cache and tokens so far."""
    from dflash_mlx.decode.greedy import greedy_rounds

    cache = pair.make_cache()
    n_done = 0
    for done in greedy_rounds(pair, ids, n_tokens, cache=cache):
        n_done += len(done.tokens)
        yield cache, n_done


def decode_with_peak(pair, ids, n_tokens):
    """Return the cache and MLX's peak over prefill and decoding."""
    import mlx.core as mx

    mx.reset_peak_memory()
    caches = [cache for cache, _ in loop(pair, ids, n_tokens)]
    return caches[-1], mx.get_peak_memory()


def decode_with_marks(pair, ids, n_tokens, every):
    """Yield tokens, active bytes and cache bytes, every so many tokens."""
    import mlx.core as mx

    mark = every
    for cache, done in loop(pair, ids, n_tokens):
        if done >= mark:
            yield done, mx.get_active_memory(), cache.nbytes
            mark += every


if __name__ == "__main__":
    main()
