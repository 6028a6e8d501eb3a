rule report:
    input:
        scores=[experiment.folder_in(EXP) + "/scores.json" for experiment in CFG.experiments()],
    output:
        table=EXP + "/results.md",
        csv=EXP + "/results.csv",
    log:
        EXP + "/logs/report.log",
    conda:
        ENV
    params:
        version=report_stage.VERSION,
    shell:
        "espnet3-rules report --scores {input.scores:q} --out {output.table:q} --log {log:q}"


# last, so that scores and results are there to explain what it refuses
rule gate:
    input:
        scores=[experiment.folder_in(EXP) + "/scores.json" for experiment in CFG.experiments()],
        table=EXP + "/results.md",
    output:
        EXP + "/gate.json",
    log:
        EXP + "/logs/gate.log",
    conda:
        ENV
    params:
        options=CFG.json(CFG.gate()),
    shell:
        "espnet3-rules gate --scores {input.scores:q} --out {output:q} --options {params.options:q} --log {log:q}"
