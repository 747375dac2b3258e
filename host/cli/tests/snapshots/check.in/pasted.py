output = torch_npu.npu_moe_distribute_dispatch_v2(
    x=hidden_states,
    expert_ids=topk_ids,
    group_ep="mc2",
    ep_world_size=16,
    ep_rank_id=self.ep_rank_id,
    moe_expert_num=256,
    scales=None,
    x_active_mask=mc2_mask,
    quant_mode=2,
    global_bs=0,
)
