"""What is done to logits in a torch tensor, on any device, without waiting for it."""

from functools import lru_cache

import torch

from .automaton import Ints
from .logits import FORCED_LOGIT, FORCED_SHARE, Additions, bounded, merge


def add(additions: Additions, logits: torch.Tensor) -> None:
    """Add to cells of logits whose columns are contiguous, without waiting for the device."""
    flat, limit = flattened(logits), highest_logit(logits.dtype)
    if limit < FORCED_LOGIT:  # the type cannot hold every sum
        additions = merge(additions)
    cells = additions.rows * logits.stride(0) + additions.token_ids
    index = to_device(cells, logits.device)
    if limit == FORCED_LOGIT:
        values = torch.from_numpy(additions.values.clip(-limit, limit)).to(logits.dtype)
        flat.index_add_(0, index, to_device(values, logits.device))
        return
    before = flat[index]
    sums = before.float() + to_device(torch.tensor(additions.values), logits.device)
    sums = bounded(before, sums, limit, torch.where).to(before.dtype)
    flat[index] = torch.where(before == -torch.inf, before, sums)


def find_forced(logits: torch.Tensor) -> torch.Tensor:
    """Return which rows have a forced token, ``[rows]`` bool, without waiting for the device."""
    return logits.amax(1) > FORCED_SHARE * highest_logit(logits.dtype)


def end_where_banned(logits: torch.Tensor, forced: torch.Tensor, tokens: torch.Tensor) -> None:
    """Force tokens in rows that edits have left without one, and wait for no device.

    These have only banned tokens, or had a forced token that is now banned, or have NaN or infinity
    as their best logit, so that a sampler may choose any token: these are written whole. Engines
    have given the device's memory away by then: nothing here is as large as the logits.

    Args:
        logits: ``[rows, columns]``, edited.
        forced: what ``find_forced`` has returned before the edits.
        tokens: ``[rows]`` int64, the token to force in each; a row with -1 is left alone.
    """
    highest, columns, best = highest_logit(logits.dtype), tokens.clamp(min=0), logits.amax(1)
    has_token = tokens >= 0
    is_broken = ~(best < torch.inf) & has_token
    if logits.device.type != "cpu" or is_broken.any():
        logits.masked_fill_(is_broken[:, None], -highest)
    is_lost = is_broken | (best < -highest / 2) | (forced & (best < FORCED_SHARE * highest))
    kept = logits.gather(1, columns[:, None])
    kept.masked_fill_((is_lost & has_token)[:, None], highest)
    logits.scatter_(1, columns[:, None], kept)


def flattened(logits: torch.Tensor) -> torch.Tensor:
    """View the rows end to end, with the gaps between them."""
    if logits.is_contiguous():
        return logits.view(-1)
    rows, columns = logits.shape
    return logits.as_strided(((rows - 1) * logits.stride(0) + columns,), (1,))


@lru_cache
def highest_logit(dtype: torch.dtype) -> float:
    """Return ``FORCED_LOGIT``, or a substitute that leaves a narrow type room for scaling."""
    return min(FORCED_LOGIT, torch.finfo(dtype).max / 4)


def to_device(array: Ints | torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy without waiting: torch's allocator keeps pinned memory until the copy is done."""
    host = array if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if device.type == "cpu":
        return host
    return (host.pin_memory() if device.type == "cuda" else host).to(device, non_blocking=True)
