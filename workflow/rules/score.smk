rule score_hypotheses:
    input:
        manifest=MANIFEST,
        hypotheses=f"{EXPERIMENT}/hypotheses.jsonl",
    output:
        scores=f"{EXPERIMENT}/scores.json",
        references=f"{EXPERIMENT}/ref.trn",
        hypotheses=f"{EXPERIMENT}/hyp.trn",
    log:
        f"{EXPERIMENT}/logs/score.log",
    conda:
        ENV
    params:
        options=CFG.json(CFG.root.score.to_dict()),
        version=CFG.scoring_version(),
    shell:
        "espnet3-rules score --manifest {input.manifest:q} --hypotheses {input.hypotheses:q} --out {output.scores:q}"
        " --system {wildcards.system:q} --decoder {wildcards.decoder:q}"
        " --test-set {wildcards.corpus:q}/{wildcards.split:q} --options {params.options:q} --log {log:q}"
