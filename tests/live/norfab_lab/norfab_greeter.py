from norfab.core.worker import NFPWorker, Task
from norfab.models import Result
from pydantic import BaseModel


class GreetInput(BaseModel):
    name: str
    times: int = 1


class Greeter(NFPWorker):
    def __init__(self, inventory, broker, worker_name, exit_event=None, init_done_event=None, log_level=None):
        super().__init__(inventory, broker, "greeter", worker_name, exit_event, log_level)
        self.greeting = self.load_inventory()["greeting"]
        init_done_event.set()

    @Task(input=GreetInput, fastapi=False)
    def greet(self, job, name: str, times: int = 1) -> Result:
        job.event(f"greets {name}")
        return Result(result=[f"{self.greeting} {name}"] * times)
