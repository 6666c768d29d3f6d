/**
 * What a wish must look like to be accepted at all: checked before anything is written to history, so that a slip is
 * answered at once and leaves nothing behind. Whether a well-formed status is known is the config's business, later.
 */
import { ApplicationFailure } from '@temporalio/common';
import type { ErrorCode } from '../errors.ts';
import { isPaymentStatus } from '../plan/class.ts';
import { CLASSES, isClass } from '../plan/model.ts';
import type { WishChangeMessage } from './messages.ts';

const FIELDS: readonly string[] = [
  'paymentStatus',
  'forcedClass',
  'deleted',
] satisfies (keyof WishChangeMessage)[];

/** Throws what the client turns into an OperatorError of the same code. Synchronous: an async validator accepts all. */
export function refuseMalformed(change: WishChangeMessage): void {
  const given: unknown = change;
  if (typeof given !== 'object' || given === null || Array.isArray(given))
    throw refusal('invalid-wish', `a wish is an object, not ${JSON.stringify(given)}`);
  const { paymentStatus, forcedClass, deleted } = given as Record<string, unknown>;
  const unknown = Object.keys(given).filter((key) => !FIELDS.includes(key));
  if (unknown.length > 0)
    throw refusal('invalid-wish', `a wish has no ${unknown.join(', ')}; it may have ${FIELDS.join(', ')}`);
  if (paymentStatus != null && !isPaymentStatus(paymentStatus))
    throw refusal(
      'invalid-payment-status',
      `payment status ${JSON.stringify(paymentStatus)} is malformed; give one word such as active, past_due or canceled`,
    );
  if (forcedClass != null && !isClass(forcedClass))
    throw refusal(
      'invalid-class',
      `class ${JSON.stringify(forcedClass)} is none of ${CLASSES.join(', ')}; give one of them, or null to force none`,
    );
  if (deleted !== undefined && typeof deleted !== 'boolean')
    throw refusal('invalid-wish', `deleted is ${JSON.stringify(deleted)}; give true or false`);
}

function refusal(type: ErrorCode, message: string): ApplicationFailure {
  return ApplicationFailure.create({ type, message, nonRetryable: true });
}
