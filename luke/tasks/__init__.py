"""Fine-tuning: one file a task, one shared trainer (`luke.tasks.training`)."""
