#!/usr/bin/env python3
"""Measures NCCL on the exchanges of a transformer step, for comparison with `flux bench exchange/ --device cuda:0,1`.

For each size, the exchanges of all blocks are captured as one CUDA graph: each rank sends the keys, values and queries of
its tokens to the other ranks, split by heads, and gets the attention results back. A JSON line has the microseconds per
block: the median of several runs on the slowest rank. Copies are not included: NCCL needs dense memory, so a program would
also have to copy strided rows. With --no-peer-access the data crosses host memory.

usage: scripts/bench_nccl.py [--gpus N] [--size 512,1024,2048] [--no-peer-access]
"""

import argparse
import json
import os
import socket
import statistics

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# klein 4B.
DIM, BLOCKS, TXT, PATCH = 3072, 25, 512, 16


def graph_of(world, tokens):
    """The exchanges of one block, for all blocks."""
    rows = tokens // world
    kvq = torch.randn(rows, 3 * DIM, device="cuda").to(torch.bfloat16)
    heads = torch.randn(rows, DIM, device="cuda").to(torch.bfloat16)
    crossed, back = torch.empty_like(kvq), torch.empty_like(heads)

    def work():
        for _ in range(BLOCKS):
            dist.all_to_all_single(crossed, kvq)
            dist.all_to_all_single(back, heads)

    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph


def tokens_of(size):
    return TXT + (size // PATCH) ** 2


def measure(rank, args, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(args.gpus), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    for size in args.size:
        graph, times = graph_of(args.gpus, tokens_of(size)), []
        for _ in range(25):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            dist.barrier()
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            slowest = torch.tensor(begin.elapsed_time(end), device="cuda")
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            times.append(slowest.item())
        if rank == 0:
            row = {"name": f"nccl/{size}x{size} over {args.gpus}", "peer_access": not args.no_peer_access,
                   "block_us": round(1000 * statistics.median(times[5:]) / BLOCKS, 1)}
            print(json.dumps(row, separators=(",", ":")), flush=True)
    dist.barrier()
    os._exit(0)  # destroying the process group waits for graphs that contain its kernels


def main():
    parser = argparse.ArgumentParser(usage=__doc__.rsplit("usage: ", 1)[1].strip())
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--size", type=lambda text: [int(size) for size in text.split(",")], default=[512, 1024, 2048])
    parser.add_argument("--no-peer-access", action="store_true")
    args = parser.parse_args()
    uneven = [size for size in args.size if tokens_of(size) % args.gpus**2]
    if uneven:
        parser.error(f"the tokens cannot be split evenly over {args.gpus} GPUs at {uneven}")
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    if args.no_peer_access:
        os.environ["NCCL_P2P_DISABLE"] = "1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(measure, args=(args, port), nprocs=args.gpus)


if __name__ == "__main__":
    main()
