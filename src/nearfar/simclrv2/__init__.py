"""Many instances, few labels: `nearfar semi`, `nf.semi` (SimCLR v2, Chen, Kornblith et al. 2020).

    pretrain/   a recipe on all instances, no label
    finetune/   from a middle layer of its head on, by the few labels
    distil/     a student, the same network or a smaller one, learns what the fine-tuned one says of all instances
    scratch/    the same network by the few labels alone, for comparison

Each stage is a run like any other, resumed by the same command.
"""
