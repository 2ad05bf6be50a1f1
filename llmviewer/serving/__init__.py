"""Serving requests that arrive over time, on bounds and expected times of steps.

Modules in reading order:
  requests     options: what users set; offered_traffic: requests of options; traffic, lengths, trace_files: arrivals,
               lengths of prompts and answers, files of both
  one replica  steps, step_times, stages: times of steps, memory; policy, orders, kv_cache, prefix_cache,
               progress: scheduling
  simulation   server, routers, prefill_pool: discrete events; metrics, outcome: results; simulation: simulate()
  closed form  demand, balance, markov_chain, flow: mean batch and queueing, of arrays; steady: one replica under any
               policy; saturation: max_throughput()
  planning     load, placement, fleet_times, replicas: on many devices at once; candidates, pairing, search,
               service_plan: settings that meet the goals; planning: plan()
  advice       advice: advise()
"""
