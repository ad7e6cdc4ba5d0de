"""Semi-supervised learning: `nearfar semi`, `nf.semi` (SimCLR v2, Chen, Kornblith et al. 2020).

    pretrain/   a recipe on all instances, without labels
    finetune/   the backbone and the first layers of the head, on the few labels
    distil/     a student, the same network or a smaller one, of the fine-tuned network's outputs on all instances
    scratch/    the same network on the few labels only, for comparison

Each stage is a run and a cell of sweeps/engine.py: the same command resumes.
"""
