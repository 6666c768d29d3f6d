/** Messages from one workflow to another that may be gone: that it is gone is an answer, no failure. */
import { type SignalDefinition, TemporalFailure } from '@temporalio/common';
import { type ExternalWorkflowHandle, isCancellation } from '@temporalio/workflow';

/** True when the workflow runs and has got it; false when no such workflow runs. */
export async function signalled<Args extends unknown[]>(
  to: Pick<ExternalWorkflowHandle, 'signal'>,
  signal: SignalDefinition<Args>,
  args: NoInfer<Args>,
): Promise<boolean> {
  return reached(() => to.signal(signal, ...args));
}

/** The same of a request to cancel. */
export function cancelled(to: Pick<ExternalWorkflowHandle, 'cancel'>): Promise<boolean> {
  return reached(() => to.cancel());
}

async function reached(send: () => Promise<void>): Promise<boolean> {
  try {
    await send();
    return true;
  } catch (error) {
    if (isCancellation(error) || !(error instanceof TemporalFailure)) throw error;
    return false;
  }
}
